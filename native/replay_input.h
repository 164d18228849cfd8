// What a replay may be given: everything else is refused before anything is done with it.
#pragma once

#include "vramlens.h"

namespace vl::replay {

// Whether the columns fit together, and hold no size, address or count that no device has.
bool is_sound(const vl_replay_input& input);
bool is_sound(const vl_replay_settings& settings);

}  // namespace vl::replay
