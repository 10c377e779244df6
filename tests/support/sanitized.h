#pragma once

namespace bimetal::testing {

/// Whether this is compiled for ThreadSanitizer or AddressSanitizer, where everything takes 5 to 30
/// times as long: tests then leave out what runs through no code of its own.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace bimetal::testing
