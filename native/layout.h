#pragma once

#include <string>

namespace vl {

// One line each: "struct NAME BYTES", followed by its fields, "TYPE NAME OFFSET", in order; and
// "enum NAME COUNT", followed by its members, "number NAME NUMBER".
const std::string& layout();

}  // namespace vl
