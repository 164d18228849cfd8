// Dicts that become rows: which kind of row a dict is, and the column that each of its fields goes
// to.

#include "pickle_rows.h"

namespace vl {
namespace {

bool text_id(Value value, uint32_t& out) {
    if (value.kind() != Kind::Text) return false;
    out = static_cast<uint32_t>(value.payload());
    return true;
}

bool set_text(LazyColumn& column, uint32_t row, Value value) {
    uint32_t id = kNone;
    if (!text_id(value, id)) return false;
    column.set(row, id);
    return true;
}

// The kind of row that a dict is, from the one key that only this kind has.
Shape shape_of(const Value* pairs, size_t count) {
    bool has_state = false, has_size = false;
    for (size_t i = 0; i < count; i += 2) {
        if (pairs[i].kind() != Kind::Text) continue;
        switch (pairs[i].payload()) {
            case kAction: return Shape::Event;
            case kFilename: return Shape::Frame;
            case kTotalSize: return Shape::Segment;
            case kStage: return Shape::Annotation;
            case kState:
                has_state = true;
                break;  // NCCL flight records have a state too, but no size
            case kSize: has_size = true; break;
            default: break;
        }
    }
    return has_state && has_size ? Shape::Block : Shape::Dict;
}

std::vector<Value> flat(const std::vector<std::pair<Value, Value>>& pairs) {
    std::vector<Value> values;
    for (const auto& [key, value] : pairs) values.push_back(key), values.push_back(value);
    return values;
}

uint8_t action_of(std::string_view name) {
    for (uint8_t action = 0; action < kOtherAction; ++action) {
        if (name == kActionNames[action]) return action;
    }
    return kOtherAction;
}

}  // namespace

// ---- containers

uint32_t PickleRows::new_list() {
    if (!free_lists_.empty()) {
        const uint32_t index = free_lists_.back();
        free_lists_.pop_back();
        return index;
    }
    s_.lists.emplace_back();
    return static_cast<uint32_t>(s_.lists.size() - 1);
}

Value PickleRows::new_tuple(const Value* items, size_t count) {
    // Pool ids: one tuple an event, nearly always the same.
    if (count == 2 && last_pair_.bits != 0 && items[0].bits == last_pair_first_.bits &&
        items[1].bits == last_pair_second_.bits) {
        return last_pair_;
    }
    const uint32_t index = new_list();
    s_.lists[index].assign(items, items + count);
    const Value tuple = new_container(Shape::Tuple, index);
    if (count == 2) last_pair_ = tuple, last_pair_first_ = items[0], last_pair_second_ = items[1];
    return tuple;
}

Object& PickleRows::container(Value value) {
    if (value.kind() != Kind::Object)
        malformed("an item is added to something that is no container");
    return s_.objects[value.payload()];
}

void PickleRows::append(Value list, const Value* items, size_t count) {
    Object& target = container(list);
    if (target.shape == Shape::EmptyList) {
        if (count == 0) return;
        const uint32_t index = new_list();
        target = {Shape::List, index};
    }
    if (target.shape != Shape::List) malformed("items are added to something that is no list");
    auto& store = s_.lists[target.index];
    store.insert(store.end(), items, items + count);
}

void PickleRows::set_items(Value dict, const Value* pairs, size_t count, bool is_top) {
    Object& target = container(dict);
    if (count == 0 && target.shape != Shape::Frame) return;
    switch (target.shape) {
        case Shape::EmptyDict: {
            Shape shape = is_top ? Shape::Dict : shape_of(pairs, count);
            if (shape == Shape::Frame && count > 2) {
                target = {Shape::Frame, frame(pairs, count)};
                return;
            }
            if (shape == Shape::Frame)
                shape = Shape::Dict;  // more keys may come: a stack makes it a frame
            target = {shape, new_row(shape)};
            break;
        }
        case Shape::Dict:
            if (!is_top && becomes_row(target, pairs, count)) return;
            break;
        case Shape::Event:
        case Shape::Segment:
        case Shape::Block:
        case Shape::Annotation: break;
        default: malformed("pairs are added to something that is no dict, or to a frame in use");
    }
    const Object row = target;
    for (size_t i = 0; i < count; i += 2) set_field(row, pairs[i], pairs[i + 1]);
}

// A dict that is written one key at a time becomes a row once the telling key has come.
bool PickleRows::becomes_row(Object& dict, const Value* pairs, size_t count) {
    auto& earlier = s_.dicts[dict.index];
    if (earlier.size() > kMostKeys) return false;
    std::vector<Value> all = flat(earlier);
    all.insert(all.end(), pairs, pairs + count);
    const Shape shape = shape_of(all.data(), all.size());
    if (shape == Shape::Dict || shape == Shape::Frame) return false;
    earlier.clear();
    dict = {shape, new_row(shape)};
    const Object row = dict;
    for (size_t i = 0; i < all.size(); i += 2) set_field(row, all[i], all[i + 1]);
    return true;
}

// ---- rows

uint32_t PickleRows::new_row(Shape shape) {
    switch (shape) {
        case Shape::Event: return new_event();
        case Shape::Segment: return new_segment();
        case Shape::Block: return new_block();
        case Shape::Annotation: return new_annotation();
        default: s_.dicts.emplace_back(); return row_number(s_.dicts.size() - 1);
    }
}

uint32_t PickleRows::new_segment() {
    auto& t = s_.segments;
    t.device.push_back(0), t.address.push_back(0), t.total_size.push_back(0), t.stream.push_back(0);
    t.allocated_size.push_back(0), t.active_size.push_back(0), t.requested_size.push_back(0);
    t.type.push_back(kNone), t.pool.push_back(kNone), t.stack.push_back(kNone);
    t.is_expandable.push_back(0), t.blocks.push_back(0);
    return row_number(t.device.size() - 1);
}

uint32_t PickleRows::new_block() {
    auto& t = s_.blocks;
    t.address.push_back(0), t.size.push_back(0), t.requested_size.push_back(0);
    t.state.push_back(kNone), t.stack.push_back(kNone);
    return row_number(t.address.size() - 1);
}

uint32_t PickleRows::new_annotation() {
    auto& t = s_.annotations;
    t.stage.push_back(kNone), t.name.push_back(kNone), t.device.push_back(-1),
        t.time_us.push_back(0);
    return row_number(t.stage.size() - 1);
}

// ---- fields

void PickleRows::set_field(Object target, Value key, Value value) {
    const uint32_t row = target.index;
    uint32_t field = kNone;
    if (!text_id(key, field) && target.shape != Shape::Dict) malformed("a key that is no text");
    switch (target.shape) {
        case Shape::Event: return set_event(row, field, value);
        case Shape::Segment:
            if (!set_segment_column(row, field, value)) s_.segments.extras.add(row, field, value);
            return;
        case Shape::Block:
            if (!set_block_column(row, field, value)) s_.blocks.extras.add(row, field, value);
            return;
        case Shape::Annotation:
            if (!set_annotation_column(row, field, value))
                s_.annotations.extras.add(row, field, value);
            return;
        default: s_.dicts[row].emplace_back(key, value);
    }
}

void PickleRows::set_event(uint32_t row, uint32_t field, Value value) {
    if (!set_event_column(row, field, value)) s_.events.extras.add(row, field, value);
}

bool PickleRows::set_event_column(uint32_t row, uint32_t field, Value value) {
    auto& t = s_.events;
    switch (field) {
        case kAction: return set_action(row, value);
        case kAddr: return number(value, t.address[row]);
        case kSize: return number(value, t.size[row]);
        case kStream: return number(value, t.stream[row]);
        case kTimeUs: return number(value, t.time_us[row]);
        case kFrames: return intern_stack(value, t.stack[row]);
        case kCompileContext: return set_text(t.compile_context, row, value);
        case kUserMetadata: return set_text(t.user_metadata, row, value);
        case kPoolId: {
            uint32_t id = kNone;
            if (!pool(value, id)) return false;
            t.pool.set(row, id);
            return true;
        }
        case kDeviceFree: return set_device_free(row, value);
        default: return false;
    }
}

bool PickleRows::set_action(uint32_t row, Value value) {
    uint32_t id = kNone;
    if (!text_id(value, id)) return false;
    const uint8_t action = action_of(s_.text(id));
    s_.events.action[row] = action;
    if (action == kOtherAction) s_.events.other_action.set(row, id);
    return true;
}

bool PickleRows::set_device_free(uint32_t row, Value value) {
    uint64_t free_bytes = 0;
    if (!number(value, free_bytes)) return false;
    s_.events.oom_row.push_back(row), s_.events.oom_device_free.push_back(free_bytes);
    return true;
}

bool PickleRows::set_segment_column(uint32_t row, uint32_t field, Value value) {
    auto& t = s_.segments;
    switch (field) {
        case kDevice: return number(value, t.device[row]);
        case kAddress: return number(value, t.address[row]);
        case kTotalSize: return number(value, t.total_size[row]);
        case kAllocatedSize: return number(value, t.allocated_size[row]);
        case kActiveSize: return number(value, t.active_size[row]);
        case kRequestedSize: return number(value, t.requested_size[row]);
        case kStream: return number(value, t.stream[row]);
        case kSegmentType: return text_id(value, t.type[row]);
        case kSegmentPoolId: return pool(value, t.pool[row]);
        case kFrames: return intern_stack(value, t.stack[row]);
        case kIsExpandable:
            if (value.kind() != Kind::Bool) return false;
            t.is_expandable[row] = static_cast<uint8_t>(value.payload());
            return true;
        case kBlocks: t.blocks[row] = value.bits; return true;
        default: return false;
    }
}

bool PickleRows::set_block_column(uint32_t row, uint32_t field, Value value) {
    auto& t = s_.blocks;
    switch (field) {
        case kAddress: return number(value, t.address[row]);
        case kSize: return number(value, t.size[row]);
        case kRequestedSize: return number(value, t.requested_size[row]);
        case kState: return text_id(value, t.state[row]);
        case kFrames: return intern_stack(value, t.stack[row]);
        case kHistory: return set_block_history(row, value);
        default: return false;
    }
}

// Before PyTorch 2.1: [{addr, real_size, frames}], the latest first.
bool PickleRows::set_block_history(uint32_t row, Value history) {
    if (history.kind() != Kind::Object) return false;
    const Object list = s_.objects[history.payload()];
    if (list.shape != Shape::List || s_.lists[list.index].empty()) return false;
    const Value latest = s_.lists[list.index].front();
    if (latest.kind() != Kind::Object || s_.objects[latest.payload()].shape != Shape::Dict)
        return false;
    const auto& entry = s_.dicts[s_.objects[latest.payload()].index];
    if (entry.size() > kMostKeys) return false;
    auto& t = s_.blocks;
    for (const auto& [key, value] : entry) {
        if (key.kind() != Kind::Text) continue;
        if (key.payload() == kRealSize) number(value, t.requested_size[row]);
        if (key.payload() == kAddr) number(value, t.address[row]);
        if (key.payload() == kFrames) intern_stack(value, t.stack[row]);
    }
    return true;
}

bool PickleRows::set_annotation_column(uint32_t row, uint32_t field, Value value) {
    auto& t = s_.annotations;
    switch (field) {
        case kStage: return text_id(value, t.stage[row]);
        case kName: return text_id(value, t.name[row]);
        case kDevice: return number(value, t.device[row]);
        case kTimeUs: return number(value, t.time_us[row]);
        default: return false;
    }
}

// ---- frames, stacks, pools

// Equal frames are stored once; a frame with fields beyond the three is equal only if those are.
uint32_t PickleRows::frame(const Value* pairs, size_t count) {
    auto& t = s_.frames;
    uint32_t file = kNone, function = kNone;
    int64_t line = 0;
    frame_key_.assign(3, 0);
    for (size_t i = 0; i < count; i += 2) {
        uint32_t field = kNone;
        if (!text_id(pairs[i], field)) malformed("a key that is no text");
        const Value value = pairs[i + 1];
        if (field == kFilename && text_id(value, file)) continue;
        if (field == kName && text_id(value, function)) continue;
        if (field == kLine && number(value, line)) continue;
        frame_key_.push_back(field), frame_key_.push_back(value.bits);
    }
    frame_key_[0] = file, frame_key_[1] = function, frame_key_[2] = static_cast<uint64_t>(line);
    const uint32_t row = t.keys.id_of(frame_key_.data(), frame_key_.size());
    if (row == t.file.size()) {
        t.file.push_back(file), t.name.push_back(function), t.line.push_back(line);
        for (size_t i = 3; i < frame_key_.size(); i += 2) {
            t.extras.add(row, static_cast<uint32_t>(frame_key_[i]), Value{frame_key_[i + 1]});
        }
    }
    return row;
}

// True for a frame; a dict that was written one key at a time becomes one now.
bool PickleRows::is_frame(Value value) {
    if (value.kind() != Kind::Object) return false;
    Object& object = s_.objects[value.payload()];
    if (object.shape != Shape::Dict) return object.shape == Shape::Frame;
    auto& fields = s_.dicts[object.index];
    if (fields.size() > kMostKeys) return false;
    const std::vector<Value> pairs = flat(fields);
    if (shape_of(pairs.data(), pairs.size()) != Shape::Frame) return false;
    object = {Shape::Frame, frame(pairs.data(), pairs.size())};
    fields.clear();
    return true;
}

// The id of a list of frames. The list's own storage is given back: equal stacks are stored once.
bool PickleRows::intern_stack(Value value, uint32_t& stack) {
    if (value.kind() != Kind::Object) return false;
    const uint32_t id = static_cast<uint32_t>(value.payload());
    const Object list = s_.objects[id];
    if (list.shape == Shape::Stack) {
        stack = list.index;
        return true;
    }
    frame_ids_.clear();
    if (list.shape == Shape::List && !list.is_no_stack) {
        for (const Value item : s_.lists[list.index]) {
            if (!is_frame(item)) {
                s_.objects[id].is_no_stack =
                    true;  // not looked through again for every event that names it
                return false;
            }
            frame_ids_.push_back(s_.objects[item.payload()].index);
        }
        s_.lists[list.index].clear();
        free_lists_.push_back(list.index);
    } else if (list.shape != Shape::EmptyList) {
        return false;
    }
    stack = s_.stacks.id_of(frame_ids_.data(), frame_ids_.size());
    s_.objects[id] = {Shape::Stack, stack};
    return true;
}

bool PickleRows::pool(Value value, uint32_t& pool) const {
    if (value.kind() != Kind::Object || s_.objects[value.payload()].shape != Shape::Tuple)
        return false;
    const auto& items = s_.lists[s_.objects[value.payload()].index];
    int64_t pair[2] = {0, 0};
    if (items.size() != 2 || !s_.as_integer(items[0], pair[0]) || !s_.as_integer(items[1], pair[1]))
        return false;
    pool = s_.pools.id_of(pair, 2);
    return true;
}

}  // namespace vl
