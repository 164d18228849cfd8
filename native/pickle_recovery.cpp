#include "pickle_recovery.h"

#include <algorithm>

namespace vl {
namespace {

class Recovery {
  public:
    Recovery(Snapshot& snapshot, PickleRows& rows, Column<Value>& stack)
        : s_(snapshot), rows_(rows), stack_(stack) {}

    void mark_unfinished(Value value) {
        if (value.kind() == Kind::Object)
            s_.unfinished.push_back(static_cast<uint32_t>(value.payload()));
    }

    // A list of one item is written without a mark: list, item, APPEND. Such items go to their
    // lists.
    void append_single_items(size_t mark, bool is_bottom) {
        while (stack_.size() > mark + 1 && is_list(stack_[stack_.size() - 2])) {
            const Value item = stack_.back();
            const size_t depth = stack_.size() - mark;
            const bool in_list = mark != 0 && is_list(stack_[mark - 1]);
            if (in_list || (depth % 2 == 0 && !is_bottom))
                return;  // siblings, or a whole pair of a dict
            stack_.truncate(stack_.size() - 1);
            mark_unfinished(stack_.back());
            if (!is_blank(item)) rows_.append(stack_.back(), &item, 1);
        }
    }

    // Hands what stands above a mark to the container below it.
    void close_container(size_t mark) {
        const Value container = mark == 0 ? Value::of(Kind::None, 0) : stack_[mark - 1];
        if (container.kind() == Kind::Object) {
            mark_unfinished(container);
            std::vector<Value> items(stack_.begin() + mark, stack_.end());
            if (is_list(container)) {
                items.erase(std::remove_if(items.begin(), items.end(),
                                           [this](Value item) { return is_blank(item); }),
                            items.end());
                rows_.append(container, items.data(), items.size());
            } else if (mark == 1 && is_dict(container)) {  // the top level
                if (items.size() % 2 != 0) items.pop_back();
                rows_.set_items(container, items.data(), items.size(), true);
            }
        }
        stack_.truncate(mark);
    }

  private:
    Snapshot& s_;
    PickleRows& rows_;
    Column<Value>& stack_;

    bool has_shape(Value value, Shape shape) const {
        return value.kind() == Kind::Object && s_.objects[value.payload()].shape == shape;
    }
    bool is_list(Value value) const {
        return has_shape(value, Shape::List) || has_shape(value, Shape::EmptyList);
    }
    bool is_dict(Value value) const { return has_shape(value, Shape::Dict) || is_blank(value); }
    bool is_blank(Value value) const { return has_shape(value, Shape::EmptyDict); }
};

}  // namespace

void close_open_containers(Snapshot& snapshot, PickleRows& rows, Column<Value>& stack,
                           std::vector<size_t>& marks) {
    Recovery recovery(snapshot, rows, stack);
    if (!stack.empty())
        recovery.mark_unfinished(stack.back());  // more items may have been about to come
    while (!marks.empty()) {
        recovery.append_single_items(marks.back(), false);
        const size_t mark = marks.back();
        marks.pop_back();
        recovery.close_container(mark);
    }
    recovery.append_single_items(0, true);
}

}  // namespace vl
