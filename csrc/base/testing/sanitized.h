// Whether a sanitizer looks on, and how much of a test to do then: they cost a factor of ten and
// more, and see in the first rounds what they see in all.
#pragma once

namespace uccl {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

template <typename T>
constexpr T UnderSanitizers(T less, T otherwise) {
  return kSanitized ? less : otherwise;
}

}  // namespace uccl
