// Expandable segments: one range of addresses a pool and stream, mapped in whole handles as it is
// needed.

#include <algorithm>

#include "replay_allocator.h"

namespace vl::replay {

// DeviceCachingAllocator::find_expandable_block: the lowest run of free or unmapped blocks that
// holds the request.
uint32_t Allocator::find_expandable_block(const Request& request) {
    BlockPool& pool = pools_[request.pool];
    for (auto at = pool.unmapped.lower_bound({request.stream, 0, 0});
         at != pool.unmapped.end() && std::get<0>(*at) == request.stream; ++at) {
        count_steps(1);
        uint32_t candidate = std::get<2>(*at);
        if (allocatable(blocks[candidate].prev)) candidate = blocks[candidate].prev;
        uint64_t bytes = 0;
        for (uint32_t b = candidate; bytes < request.size && allocatable(b); b = blocks[b].next) {
            count_steps(1);
            bytes += blocks[b].size;
        }
        if (bytes >= request.size) return candidate;
    }
    const uint64_t handle = pool.is_small ? kSmallBuffer : settings.large_segment_size;
    const uint64_t size = (settings.reserve + handle - 1) / handle * handle;
    if (size < request.size) return kNoBlock;
    return place_reservation(surroundings_->reserve_addresses(size), size, request.stream,
                             request.pool / 2, pool.is_small);
}

uint32_t Allocator::place_reservation(uint64_t address, uint64_t size, uint16_t stream,
                                      uint32_t pool, bool small) {
    const auto row = static_cast<uint32_t>(expandable_segments_.size());
    expandable_segments_.push_back(
        {address, size, small ? kSmallBuffer : settings.large_segment_size});
    const uint32_t block = new_block({address, size, 0, 0, kNoBlock, kNoBlock, row, 0,
                                      row_of(pool, small), stream, false, false, false},
                                     0, true);
    pools_[row_of(pool, small)].unmapped.insert(unmapped_key(block));
    return block;
}

// DeviceCachingAllocator::try_allocate_expandable_block
uint32_t Allocator::try_allocate_expandable_block(const Request& request) {
    uint32_t candidate = find_expandable_block(request);
    if (candidate == kNoBlock) return kNoBlock;
    if (!blocks[candidate].mapped &&
        !map_block(candidate, std::min(blocks[candidate].size, request.size))) {
        return kNoBlock;
    }
    while (blocks[candidate].size < request.size) {  // a failure leaves what was mapped so far
        const uint32_t next = blocks[candidate].next;
        if (!map_block(next, std::min(request.size - blocks[candidate].size, blocks[next].size)))
            return kNoBlock;
        candidate = next;
    }
    erase_from_blocks(candidate);
    return candidate;
}

// DeviceCachingAllocator::map_block
bool Allocator::map_block(uint32_t block, uint64_t size) {
    const uint64_t mapped = size_to_map(block, size);
    if (total_allocated_memory + mapped > settings.capacity ||
        !surroundings_->cu_mem_map(blocks[block].address, mapped)) {
        ++stats.refusals;
        return false;
    }
    map(block, mapped);
    return true;
}

// Whole handles. What was mapped before the recording may end inside of a handle of these settings.
uint64_t Allocator::size_to_map(uint32_t block, uint64_t size) const {
    const uint64_t handle = expandable_segments_[blocks[block].expandable_segment].handle_size;
    return std::min((size + handle - 1) / handle * handle, blocks[block].size);
}

void Allocator::map(uint32_t block, uint64_t mapped) {
    const uint64_t address = blocks[block].address;
    BlockPool& pool = pools_[blocks[block].pool];
    pool.unmapped.erase(unmapped_key(block));
    blocks[block].mapped = true;
    if (mapped < blocks[block].size) {
        Block rest = blocks[block];
        rest.address += mapped;
        rest.size -= mapped;
        rest.mapped = false;
        const uint32_t remaining = new_block(rest, blocks[block].counter, false);
        blocks[block].size = mapped;
        link_after(block, remaining);
        pool.unmapped.insert(unmapped_key(remaining));
    }
    try_merge_blocks(block, blocks[block].prev);
    try_merge_blocks(block, blocks[block].next);
    insert_into_blocks(block);
    total_allocated_memory += mapped;
    stats.add(kReserved, static_cast<int64_t>(mapped));
    ++stats.num_device_alloc;
    surroundings_->event(kSegmentMap, address, mapped, blocks[block].stream);
}

// Maps part of an unmapped block as it was before the recording; the block that holds that part. It
// was there: no limit of these settings refuses it.
uint32_t Allocator::place_mapped(uint32_t unmapped, uint64_t address, uint64_t size) {
    BlockPool& pool = pools_[blocks[unmapped].pool];
    if (blocks[unmapped].address < address) {
        Block rest = blocks[unmapped];
        rest.address = address;
        rest.size -= address - blocks[unmapped].address;
        const uint32_t upper = new_block(rest, blocks[unmapped].counter, false);
        blocks[unmapped].size = address - blocks[unmapped].address;
        link_after(unmapped, upper);
        pool.unmapped.insert(unmapped_key(upper));
        unmapped = upper;
    }
    map(unmapped, size_to_map(unmapped, size));
    return unmapped;
}

// DeviceCachingAllocator::unmap_block: only whole handles; what sticks out on either side stays
// mapped.
void Allocator::unmap_block(uint32_t block) {
    const ExpandableSegment segment = expandable_segments_[blocks[block].expandable_segment];
    const uint64_t handle = segment.handle_size, base = segment.address;
    const uint64_t begin = base + (blocks[block].address - base + handle - 1) / handle * handle;
    const uint64_t end =
        base + (blocks[block].address + blocks[block].size - base) / handle * handle;
    if (end <= begin) return;
    erase_from_blocks(block);
    const uint64_t before = begin - blocks[block].address;
    if (before > 0) {
        Block rest = blocks[block];
        rest.size = before;
        rest.next = block;
        const uint32_t left = new_block(rest, blocks[block].counter, false);
        if (rest.prev != kNoBlock) blocks[rest.prev].next = left;
        blocks[block].prev = left;
        insert_into_blocks(left);
    }
    const uint64_t after = blocks[block].address + blocks[block].size - end;
    if (after > 0) {
        Block rest = blocks[block];
        rest.address = end;
        rest.size = after;
        const uint32_t right = new_block(rest, blocks[block].counter, false);
        link_after(block, right);
        insert_into_blocks(right);
    }
    blocks[block].address = begin;
    blocks[block].size = end - begin;
    blocks[block].mapped = false;
    try_merge_blocks(block, blocks[block].prev);
    try_merge_blocks(block, blocks[block].next);
    const Block it = blocks[block];
    pools_[it.pool].unmapped.insert(unmapped_key(block));
    total_allocated_memory -= end - begin;
    stats.add(kReserved, -static_cast<int64_t>(end - begin));
    ++stats.num_device_free;
    surroundings_->event(kSegmentUnmap, begin, end - begin, it.stream);
    if (it.prev == kNoBlock && it.next == kNoBlock) {  // release_expandable_segment
        pools_[it.pool].unmapped.erase(unmapped_key(block));
        delete_block(block);
    }
}

}  // namespace vl::replay
