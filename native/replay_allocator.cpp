// malloc and free of DeviceCachingAllocator.

#include "replay_allocator.h"

namespace vl::replay {

Allocator::Allocator(const Settings& with, const Profile& version, size_t pool_count)
    : settings(with), profile(version), freeable(pool_count, 0), pools_(2 * pool_count) {
    for (size_t row = 0; row < pools_.size(); ++row) {
        pools_[row].is_small = row % 2 == 1;
        pools_[row].is_private = row >= 2;
    }
}

// ---- blocks
// ---

uint32_t Allocator::new_block(const Block& block, uint32_t inherited_counter, bool new_segment) {
    uint32_t row;
    if (unused_blocks_.empty()) {
        row = static_cast<uint32_t>(blocks.size());
        blocks.push_back(block);
    } else {
        row = unused_blocks_.back();
        unused_blocks_.pop_back();
        blocks[row] = block;
    }
    switch (profile.tie_order) {
        case TieOrder::kAddress: blocks[row].counter = 0; break;
        case TieOrder::kObjectCounter: blocks[row].counter = ++counters_; break;
        case TieOrder::kSegmentCounter:
            blocks[row].counter = new_segment ? ++counters_ : inherited_counter;
            break;
    }
    return row;
}

FreeKey Allocator::key_of(uint32_t block) const {
    const Block& it = blocks[block];
    return {FreeKey::join(it.stream, it.size), it.address, it.counter, block};
}

// BlockPool::insert_into_blocks
void Allocator::insert_into_blocks(uint32_t block) {
    BlockPool& pool = pools_[blocks[block].pool];
    blocks[block].gc_base = pool.get_free_blocks_call_count;
    pool.blocks.insert(key_of(block));
}

void Allocator::link_after(uint32_t block, uint32_t follower) {  // Block::splice
    const uint32_t next = blocks[block].next;
    blocks[follower].prev = block;
    blocks[follower].next = next;
    blocks[block].next = follower;
    if (next != kNoBlock) blocks[next].prev = follower;
}

// ---- malloc
// ---

uint32_t Allocator::malloc(uint64_t requested, uint16_t stream, uint32_t pool, bool in_scope) {
    const uint64_t size = round_size(requested, settings);
    const Request request{size, get_allocation_size(size, settings), stream,
                          row_of(pool, size <= kSmallSize)};
    const bool scoped = in_scope && profile.scope_suppresses_release;
    uint32_t block = get_free_block(request);
    if (block == kNoBlock) {
        if (gc_on()) garbage_collect_cached_blocks();
        block = alloc_block(request, false);
        const bool rejected = total_allocated_memory + request.alloc_size > settings.reject_above;
        if (block == kNoBlock && !rejected) {
            if (release_available_cached_blocks(request)) block = alloc_block(request, false);
            if (block == kNoBlock && !scoped) {
                release_cached_blocks(in_scope);
                block = alloc_block(request, true);
            }
        }
        if (block == kNoBlock) {
            if (rejected) return kNoBlock;  // no event: PyTorch throws before it asks the driver
            ++stats.num_ooms;
            surroundings_->event(kOom, 0, size, stream);
            return kNoBlock;
        }
    }
    return alloc_found_block(request, requested, block);
}

// DeviceCachingAllocator::get_free_block
uint32_t Allocator::get_free_block(const Request& request) {
    BlockPool& pool = pools_[request.pool];
    if (gc_on()) ++pool.get_free_blocks_call_count;
    auto at = pool.blocks.lower_bound({FreeKey::join(request.stream, request.size), 0, 0, 0});
    const auto end = pool.blocks.end();
    const auto mine = [&](FreeBlocks::Place place) {
        return place != end && pool.blocks[place].stream() == request.stream;
    };
    if (!mine(at)) return kNoBlock;
    const auto is_expandable = [&](FreeBlocks::Place place) {
        return blocks[pool.blocks[place].block].expandable_segment != kNoBlock;
    };
    if (is_expandable(at)) {
        if (settings.expandable_segments) {
            // A block that touches unmapped memory could grow: it is used last (a greedy walk, not
            // a minimum).
            const auto expandable_size = [&](FreeBlocks::Place place) {
                const Block& block = blocks[pool.blocks[place].block];
                const bool grows = block.next != kNoBlock && !blocks[block.next].mapped;
                return block.size + (grows ? blocks[block.next].size : 0);
            };
            auto next = pool.blocks.next(at);
            while (is_expandable(at) && mine(next) && expandable_size(next) < expandable_size(at)) {
                count_steps(1);
                at = next;
                next = pool.blocks.next(next);
            }
        } else {
            do {
                count_steps(1);
                at = pool.blocks.next(at);
            } while (mine(at) && is_expandable(at));
            if (!mine(at)) return kNoBlock;
        }
    }
    const FreeKey found = pool.blocks[at];
    if (request.size < settings.max_split_size && found.size() >= settings.max_split_size)
        return kNoBlock;
    if (request.size >= settings.max_split_size &&
        found.size() >= request.size + settings.max_non_split_rounding_size) {
        return kNoBlock;
    }
    if (blocks[found.block].expandable_segment == kNoBlock) {
        const auto next = pool.blocks.next(at);
        if (next != end && pool.blocks[next].stream_and_size == found.stream_and_size) ++stats.ties;
    }
    pool.blocks.erase(at);
    return found.block;
}

// DeviceCachingAllocator::alloc_block
uint32_t Allocator::alloc_block(const Request& request, bool is_retry) {
    if (is_retry) ++stats.num_alloc_retries;
    const bool over = settings.allowed_maximum != kUnlimited &&
                      total_allocated_memory + request.alloc_size > settings.allowed_maximum;
    if (over || !surroundings_->admits(request.alloc_size)) {
        ++stats.refusals;
        return kNoBlock;
    }
    if (total_allocated_memory + request.alloc_size > settings.reject_above) return kNoBlock;
    if (settings.expandable_segments) return try_allocate_expandable_block(request);
    uint64_t address = 0;
    if (total_allocated_memory + request.alloc_size > settings.capacity ||
        !surroundings_->cuda_malloc(request.alloc_size, request.stream, address)) {
        ++stats.refusals;
        return kNoBlock;
    }
    total_allocated_memory += request.alloc_size;
    stats.add(kReserved, static_cast<int64_t>(request.alloc_size));
    ++stats.num_device_alloc;
    surroundings_->event(kSegmentAlloc, address, request.alloc_size, request.stream);
    return new_block({address, request.alloc_size, 0, 0, kNoBlock, kNoBlock, kNoBlock, 0,
                      request.pool, request.stream, false, true, false},
                     0, true);
}

// DeviceCachingAllocator::should_split
bool Allocator::should_split(uint32_t block, uint64_t size) const {
    const uint64_t remaining = blocks[block].size - size;
    if (pools_[blocks[block].pool].is_small || settings.expandable_segments)
        return remaining >= kMinBlockSize;
    return size < settings.max_split_size && remaining > kSmallSize;
}

// DeviceCachingAllocator::alloc_found_block
uint32_t Allocator::alloc_found_block(const Request& request, uint64_t requested, uint32_t found) {
    const bool already_split = is_split(blocks[found]);
    const bool counts =
        blocks[found].expandable_segment == kNoBlock;  // expandable blocks are never inactive_split
    uint32_t block = found;
    if (should_split(found, request.size)) {
        Block head = blocks[found];
        head.size = request.size;
        head.next = found;
        block = new_block(head, blocks[found].counter, false);
        Block& tail = blocks[found];
        if (tail.prev != kNoBlock) blocks[tail.prev].next = block;
        tail.prev = block;
        tail.address += request.size;
        tail.size -= request.size;
        insert_into_blocks(found);
        if (counts)
            stats.add(kInactiveSplit,
                      static_cast<int64_t>(already_split ? -request.size : tail.size));
    } else if (already_split && counts) {
        stats.add(kInactiveSplit, -static_cast<int64_t>(blocks[found].size));
    }
    Block& it = blocks[block];
    it.allocated = true;
    it.requested_size = requested;
    ++stats.allocations;
    stats.add(kAllocated, static_cast<int64_t>(it.size));
    stats.add(kActive, static_cast<int64_t>(it.size));
    stats.add(kRequested, static_cast<int64_t>(requested));
    return block;
}

// ---- free
// ---

void Allocator::free(uint32_t block) {
    blocks[block].allocated = false;
    stats.add(kAllocated, -static_cast<int64_t>(blocks[block].size));
    free_block(block);
}

void Allocator::free_later(uint32_t block) {
    blocks[block].allocated = false;
    blocks[block].pending = true;
    stats.add(kAllocated, -static_cast<int64_t>(blocks[block].size));
    blocks[block].gc_base = ++turns_;
    pending_.emplace(turns_, block);
}

void Allocator::complete(uint32_t block) {
    blocks[block].pending = false;
    pending_.erase(blocks[block].gc_base);
    free_block(block);
}

// DeviceCachingAllocator::free_block
void Allocator::free_block(uint32_t block) {
    const uint64_t size = blocks[block].size;
    const bool counts = blocks[block].expandable_segment == kNoBlock;
    stats.add(kActive, -static_cast<int64_t>(size));
    stats.add(kRequested, -static_cast<int64_t>(blocks[block].requested_size));
    uint64_t swallowed = try_merge_blocks(block, blocks[block].prev);
    swallowed += try_merge_blocks(block, blocks[block].next);
    insert_into_blocks(block);
    if (counts) {
        const auto split = static_cast<int64_t>(is_split(blocks[block]) ? blocks[block].size : 0);
        stats.add(kInactiveSplit, split - static_cast<int64_t>(swallowed));
    }
}

// DeviceCachingAllocator::try_merge_blocks: the one that is freed stays the object, and takes in
// its neighbour.
uint64_t Allocator::try_merge_blocks(uint32_t into, uint32_t from) {
    if (!allocatable(from) || blocks[into].mapped != blocks[from].mapped) return 0;
    Block& source = blocks[from];
    if (source.mapped) {
        erase_from_blocks(from);
    } else {
        pools_[source.pool].unmapped.erase(unmapped_key(from));
    }
    Block& target = blocks[into];
    if (target.prev == from) {
        target.address = source.address;
        target.prev = source.prev;
        if (target.prev != kNoBlock) blocks[target.prev].next = into;
    } else {
        target.next = source.next;
        if (target.next != kNoBlock) blocks[target.next].prev = into;
    }
    target.size += source.size;
    const uint64_t swallowed = source.size;
    delete_block(from);
    return swallowed;
}

// ---- what was there before the recording
// ---

uint32_t Allocator::place_segment(uint64_t address, uint64_t size, uint16_t stream, uint32_t pool,
                                  bool small) {
    total_allocated_memory += size;
    stats.add(kReserved, static_cast<int64_t>(size));
    const uint32_t block = new_block({address, size, 0, 0, kNoBlock, kNoBlock, kNoBlock, 0,
                                      row_of(pool, small), stream, false, true, false},
                                     0, true);
    insert_into_blocks(block);
    return block;
}

// Cuts an allocated block out of a free one; what is left of that, on either side, stays free.
uint32_t Allocator::place_block(uint32_t free_block, uint64_t address, uint64_t size,
                                uint64_t requested) {
    erase_from_blocks(free_block);
    if (blocks[free_block].address < address) {
        Block rest = blocks[free_block];
        rest.address = address;
        rest.size -= address - blocks[free_block].address;
        const uint32_t upper = new_block(rest, blocks[free_block].counter, false);
        blocks[free_block].size = address - blocks[free_block].address;
        link_after(free_block, upper);
        insert_into_blocks(free_block);
        free_block = upper;
    }
    if (blocks[free_block].size > size) {
        Block rest = blocks[free_block];
        rest.address += size;
        rest.size -= size;
        const uint32_t upper = new_block(rest, blocks[free_block].counter, false);
        blocks[free_block].size = size;
        link_after(free_block, upper);
        insert_into_blocks(upper);
    }
    Block& block = blocks[free_block];
    block.allocated = true;
    block.requested_size = requested;
    stats.add(kAllocated, static_cast<int64_t>(size));
    stats.add(kActive, static_cast<int64_t>(size));
    stats.add(kRequested, static_cast<int64_t>(requested));
    return free_block;
}

}  // namespace vl::replay
