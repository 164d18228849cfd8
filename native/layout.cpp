// The sizes, offsets and numbers of the C interface as text: callers build or check their mirrors
// by it.

#include "layout.h"

#include <cstddef>
#include <type_traits>

#include "lifetimes.h"
#include "replay.h"
#include "snapshot.h"

namespace vl {
namespace {

template <typename T>
std::string type_name() {
    if constexpr (std::is_pointer_v<T>) {
        return "pointer";
    } else if constexpr (std::is_array_v<T>) {
        return type_name<std::remove_extent_t<T>>() + "*" + std::to_string(std::extent_v<T>);
    } else if constexpr (std::is_same_v<T, vl_replay_settings>) {
        return "vl_replay_settings";
    } else if constexpr (std::is_same_v<T, char>) {
        return "char";
    } else if constexpr (std::is_floating_point_v<T>) {
        return "float" + std::to_string(8 * sizeof(T));
    } else {
        static_assert(std::is_integral_v<T>, "a field of a type that callers do not know");
        return (std::is_signed_v<T> ? "int" : "uint") + std::to_string(8 * sizeof(T));
    }
}

class Description {
  public:
    void line(const std::string& kind, std::string_view name, int64_t number) {
        text_.append(kind)
            .append(" ")
            .append(name)
            .append(" ")
            .append(std::to_string(number))
            .append("\n");
    }
    template <typename Number>
    void number(const char* name, Number number) {
        line("number", name, static_cast<int64_t>(number));
    }
    template <size_t kCount>
    void enumeration(const char* name, const std::string_view (&members)[kCount]) {
        line("enum", name, kCount);
        for (size_t i = 0; i < kCount; ++i) line("number", members[i], static_cast<int64_t>(i));
    }
    const std::string& text() const { return text_; }

  private:
    std::string text_;
};

#define STRUCT(structure) out.line("struct", #structure, sizeof(structure))
#define FIELD(structure, name) \
    out.line(type_name<decltype(structure::name)>(), #name, offsetof(structure, name))

void add_structures(Description& out) {
    STRUCT(vl_column);
    FIELD(vl_column, data);
    FIELD(vl_column, count);
    FIELD(vl_column, type);

    STRUCT(vl_status);
    FIELD(vl_status, code);
    FIELD(vl_status, offset);
    FIELD(vl_status, message);

    STRUCT(vl_device);
    FIELD(vl_device, events);
    FIELD(vl_device, action);
    FIELD(vl_device, address);
    FIELD(vl_device, size);
    FIELD(vl_device, stream);
    FIELD(vl_device, stack);
    FIELD(vl_device, segments);
    FIELD(vl_device, segment_address);
    FIELD(vl_device, segment_size);
    FIELD(vl_device, segment_stream);
    FIELD(vl_device, segment_expandable);
    FIELD(vl_device, blocks);
    FIELD(vl_device, block_address);
    FIELD(vl_device, block_size);
    FIELD(vl_device, block_requested);
    FIELD(vl_device, block_stream);
    FIELD(vl_device, block_stack);
    FIELD(vl_device, block_pending);
    FIELD(vl_device, has_final_state);
    FIELD(vl_device, max_split_size);
    FIELD(vl_device, roundup_divisions);

    STRUCT(vl_replay_settings);
    FIELD(vl_replay_settings, expandable_segments);
    FIELD(vl_replay_settings, tie_order);
    FIELD(vl_replay_settings, scope_suppresses_release);
    FIELD(vl_replay_settings, max_split_size);
    FIELD(vl_replay_settings, max_non_split_rounding_size);
    FIELD(vl_replay_settings, large_segment_size);
    FIELD(vl_replay_settings, roundup_power2_divisions);
    FIELD(vl_replay_settings, garbage_collection_threshold);
    FIELD(vl_replay_settings, allowed_maximum);
    FIELD(vl_replay_settings, capacity);
    FIELD(vl_replay_settings, reject_above);
    FIELD(vl_replay_settings, reserve);

    STRUCT(vl_replay_input);
    FIELD(vl_replay_input, events);
    FIELD(vl_replay_input, action);
    FIELD(vl_replay_input, address);
    FIELD(vl_replay_input, size);
    FIELD(vl_replay_input, stream);
    FIELD(vl_replay_input, emptied);
    FIELD(vl_replay_input, allocation);
    FIELD(vl_replay_input, released_pool);
    FIELD(vl_replay_input, rows);
    FIELD(vl_replay_input, row_born);
    FIELD(vl_replay_input, row_address);
    FIELD(vl_replay_input, row_requested);
    FIELD(vl_replay_input, row_taken);
    FIELD(vl_replay_input, row_stream);
    FIELD(vl_replay_input, row_pool);
    FIELD(vl_replay_input, row_scratch);
    FIELD(vl_replay_input, row_pending);
    FIELD(vl_replay_input, base_segments);
    FIELD(vl_replay_input, base_address);
    FIELD(vl_replay_input, base_size);
    FIELD(vl_replay_input, base_stream);
    FIELD(vl_replay_input, base_reservation);
    FIELD(vl_replay_input, base_pool);
    FIELD(vl_replay_input, base_mapped);
    FIELD(vl_replay_input, base_small);
    FIELD(vl_replay_input, pools);
    FIELD(vl_replay_input, settings);

    STRUCT(vl_what_if);
    FIELD(vl_what_if, settings);
    FIELD(vl_what_if, addresses);
    FIELD(vl_what_if, completion);
    FIELD(vl_what_if, seed);

    STRUCT(vl_outcome);
    FIELD(vl_outcome, peak_requested);
    FIELD(vl_outcome, peak_allocated);
    FIELD(vl_outcome, peak_active);
    FIELD(vl_outcome, peak_reserved);
    FIELD(vl_outcome, retries);
    FIELD(vl_outcome, device_allocs);
    FIELD(vl_outcome, device_frees);
    FIELD(vl_outcome, failures);
    FIELD(vl_outcome, new_failures);
    FIELD(vl_outcome, served_failures);
    FIELD(vl_outcome, first_failure);
    FIELD(vl_outcome, first_served);
    FIELD(vl_outcome, died_at);
    FIELD(vl_outcome, ties);
    FIELD(vl_outcome, failed_size);
}

#undef STRUCT
#undef FIELD

void add_numbers(Description& out) {
    out.line("enum", "column_type", 5);
    out.number("uint8", VL_U8);
    out.number("int32", VL_I32);
    out.number("uint32", VL_U32);
    out.number("int64", VL_I64);
    out.number("uint64", VL_U64);

    out.line("enum", "read_status", 7);
    out.number("whole", VL_WHOLE);
    out.number("truncated", VL_TRUNCATED);
    out.number("unsafe", VL_UNSAFE);
    out.number("limit", VL_LIMIT);
    out.number("malformed", VL_MALFORMED);
    out.number("read_failed", VL_READ_FAILED);
    out.number("no_memory", VL_NO_MEMORY);

    out.line("enum", "cell_kind", 9);
    out.number("none", Kind::None);
    out.number("bool", Kind::Bool);
    out.number("int", Kind::Int);
    out.number("wide_int", Kind::WideInt);
    out.number("wide_uint", Kind::WideUint);
    out.number("float", Kind::Float);
    out.number("text", Kind::Text);
    out.number("bytes", Kind::Bytes);
    out.number("object", Kind::Object);

    out.line("enum", "tie_order", 3);
    out.number("address", replay::TieOrder::kAddress);
    out.number("object_counter", replay::TieOrder::kObjectCounter);
    out.number("segment_counter", replay::TieOrder::kSegmentCounter);

    out.line("enum", "address_order", 4);
    out.number("driver", replay::AddressOrder::kDriver);
    out.number("ascending", replay::AddressOrder::kAscending);
    out.number("descending", replay::AddressOrder::kDescending);
    out.number("random", replay::AddressOrder::kRandom);

    out.line("enum", "completion", 3);
    out.number("recorded", replay::Completion::kRecorded);
    out.number("at_once", replay::Completion::kAtOnce);
    out.number("twice_as_late", replay::Completion::kTwiceAsLate);

    out.enumeration("action", kActionNames);
    out.enumeration("lifetimes_summary", kSummaryNames);
    out.enumeration("replay_summary", replay::kSummaryNames);
}

}  // namespace

const std::string& layout() {
    static const std::string text = [] {
        Description out;
        add_structures(out);
        add_numbers(out);
        return out.text();
    }();
    return text;
}

}  // namespace vl
