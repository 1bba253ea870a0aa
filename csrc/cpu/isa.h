// Which instruction sets this processor and build can run, and which one is in use.
#pragma once

#include <cstdint>

#include "tables.h"

namespace pgk {

const char* isa_name(int32_t isa);  // null when there is no such one
bool isa_available(int32_t isa);
int32_t isa_current();
void isa_select(int32_t isa);  // must be available

}  // namespace pgk
