#include "errors.h"

#include <cstdarg>
#include <cstdio>

namespace pgk {
namespace {
thread_local char text[256] = "";
}

int32_t fail(int32_t status, const char* format, ...) {
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  return status;
}

const char* last_error() { return text; }

}  // namespace pgk
