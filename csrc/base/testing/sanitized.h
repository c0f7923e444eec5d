#ifndef UCCL_BASE_TESTING_SANITIZED_H_
#define UCCL_BASE_TESTING_SANITIZED_H_

namespace uccl {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// How much of a test to do: sanitizers cost a factor of ten and more, and see in the first rounds what they see in all.
template <typename T>
constexpr T UnderSanitizers(T less, T otherwise) {
  return kSanitized ? less : otherwise;
}

}  // namespace uccl

#endif  // UCCL_BASE_TESTING_SANITIZED_H_
