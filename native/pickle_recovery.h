// A pickle that ends early: what is whole in its open containers is kept.
#pragma once

#include <vector>

#include "pickle_rows.h"

namespace vl {

// Closes the containers on a machine's stack from the innermost, keeping every item that is whole.
void close_open_containers(Snapshot& snapshot, PickleRows& rows, Column<Value>& stack,
                           std::vector<size_t>& marks);

}  // namespace vl
