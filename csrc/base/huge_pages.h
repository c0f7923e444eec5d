// Huge pages for large buffers that are about to be written for the first time.
//
// XLA gives every large result fresh memory and returns it to the system afterwards. With 4 KiB
// pages most of the time of a large collective is then spent in page faults: 64 MB take 16384 of
// them. The kernel's default is to give huge pages (2 MiB) only where they were asked for.
#pragma once

#include <cstddef>

namespace uccl {

// Below this a buffer holds too few whole huge pages to pay for the call.
inline constexpr size_t kHugePagesFromBytes = size_t{4} << 20;

// Asks for huge pages in the part of the buffer that consists of whole ones; nothing for small
// buffers, and where it is switched off. What the system refuses costs speed only. Memory that is
// there already stays as it is, and then the call takes 0.2 us, so nothing is remembered.
void AdviseHugePages(void* buffer, size_t bytes);

// The setting huge_pages; on at first. Of the process, as its memory is.
void UseHugePages(bool use);

}  // namespace uccl
