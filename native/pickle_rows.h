// Containers of a pickle, and the rows of a Snapshot's tables that those become which are events,
// frames, blocks.
#pragma once

#include <vector>

#include "snapshot.h"

namespace vl {

constexpr size_t kMostKeys = 64;  // of a dict that is looked at again: rows have 6 to 13

class PickleRows {
  public:
    explicit PickleRows(Snapshot& snapshot) : s_(snapshot) {}

    Value new_container(Shape shape, uint32_t index = 0) {
        if (s_.objects.size() >= kNone) throw Stop{VL_LIMIT, "more than four billion containers"};
        s_.objects.push_back({shape, index});
        return Value::of(Kind::Object, s_.objects.size() - 1);
    }
    Value new_tuple(const Value* items, size_t count);
    uint32_t new_event() {
        auto& t = s_.events;
        t.action.push_back(kOtherAction);
        t.address.push_back(0), t.size.push_back(0), t.stream.push_back(0), t.time_us.push_back(0);
        t.stack.push_back(kNone);
        return row_number(t.action.size() - 1);
    }

    void append(Value list, const Value* items, size_t count);
    // `is_top`: the dict is the snapshot itself, which is never a row.
    void set_items(Value dict, const Value* pairs, size_t count, bool is_top);
    // A known field of an unexpected type goes where unknown fields go: nothing is lost.
    void set_event(uint32_t row, uint32_t field, Value value);

  private:
    Snapshot& s_;
    std::vector<uint32_t> free_lists_;  // stores of lists that became stacks, to be used again
    std::vector<uint32_t> frame_ids_;   // the frames of the stack being interned
    std::vector<uint64_t> frame_key_;
    Value last_pair_ = Value::nothing(), last_pair_first_ = last_pair_,
          last_pair_second_ = last_pair_;

    static uint32_t row_number(size_t row) {
        if (row >= kNone) throw Stop{VL_LIMIT, "more than four billion rows"};
        return static_cast<uint32_t>(row);
    }
    uint32_t new_list();
    Object& container(Value value);
    bool becomes_row(Object& dict, const Value* pairs, size_t count);
    uint32_t new_row(Shape shape);
    uint32_t new_segment();
    uint32_t new_block();
    uint32_t new_annotation();
    void set_field(Object row, Value key, Value value);
    bool set_event_column(uint32_t row, uint32_t field, Value value);
    bool set_segment_column(uint32_t row, uint32_t field, Value value);
    bool set_block_column(uint32_t row, uint32_t field, Value value);
    bool set_block_history(uint32_t row, Value history);
    bool set_annotation_column(uint32_t row, uint32_t field, Value value);
    bool set_action(uint32_t row, Value value);
    bool set_device_free(uint32_t row, Value value);
    uint32_t frame(const Value* pairs, size_t count);
    bool is_frame(Value value);
    bool intern_stack(Value value, uint32_t& stack);
    bool pool(Value value, uint32_t& pool) const;

    template <typename T>
    bool number(Value value, T& out) const {
        int64_t wide = 0;
        if (!s_.as_integer(value, wide)) return false;
        const auto narrow = static_cast<T>(wide);
        if (sizeof(T) < sizeof wide && static_cast<int64_t>(narrow) != wide)
            return false;  // too wide for the column
        out = narrow;
        return true;
    }
};

}  // namespace vl
