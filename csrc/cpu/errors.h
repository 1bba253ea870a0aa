// The text of the calling thread's last error.
#pragma once

#include <cstdint>

#if defined(__GNUC__)
#define PGK_PRINTF __attribute__((format(printf, 2, 3)))
#else
#define PGK_PRINTF
#endif

namespace pgk {

// Keeps the formatted text and returns the status.
int32_t fail(int32_t status, const char* format, ...) PGK_PRINTF;
const char* last_error();

}  // namespace pgk
