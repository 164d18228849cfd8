// Giving memory back: garbage collection, the two releases of a failing request, empty_cache, a
// pool's end.

#include <algorithm>

#include "replay_allocator.h"

namespace vl::replay {

constexpr uint32_t kEveryPool = UINT32_MAX;

// DeviceCachingAllocator::garbage_collect_cached_blocks: whole segments of the default large pool,
// oldest first.
void Allocator::garbage_collect_cached_blocks() {
    const auto threshold = static_cast<uint64_t>(settings.garbage_collection_threshold *
                                                 static_cast<double>(settings.allowed_maximum));
    if (total_allocated_memory <= threshold) return;
    const uint64_t target = total_allocated_memory - threshold;
    BlockPool& pool = pools_[0];
    count_steps(pool.blocks.size());
    const auto collectable = [&](uint32_t row) {
        return !is_split(blocks[row]) && blocks[row].expandable_segment == kNoBlock;
    };
    const auto age = [&](uint32_t row) {
        return static_cast<double>(pool.get_free_blocks_call_count - blocks[row].gc_base);
    };
    double total_age = 0;
    int64_t freeable_blocks = 0;
    for (auto at = pool.blocks.begin(); at != pool.blocks.end(); at = pool.blocks.next(at)) {
        const uint32_t row = pool.blocks[at].block;
        if (!collectable(row)) continue;
        total_age += age(row);
        ++freeable_blocks;
    }
    uint64_t reclaimed = 0;
    bool freed_one = true;
    while (reclaimed < target && freed_one && freeable_blocks > 0) {
        const double threshold_age = total_age / static_cast<double>(freeable_blocks);
        freed_one = false;
        count_steps(pool.blocks.size());
        std::vector<uint32_t> old;
        for (auto at = pool.blocks.begin(); at != pool.blocks.end(); at = pool.blocks.next(at)) {
            const uint32_t row = pool.blocks[at].block;
            if (collectable(row) && age(row) >= threshold_age) old.push_back(row);
        }
        for (const uint32_t row : old) {  // it does not stop at the target
            freed_one = true;
            reclaimed += blocks[row].size;
            total_age -= age(row);
            --freeable_blocks;
            release_block(row);
        }
    }
}

// DeviceCachingAllocator::release_available_cached_blocks: needs a finite max_split_size.
bool Allocator::release_available_cached_blocks(const Request& request) {
    if (settings.max_split_size == kUnlimited) return false;
    BlockPool& pool = pools_[request.pool];
    const uint64_t wanted = std::max(request.size, settings.max_split_size);
    auto at = pool.blocks.lower_bound({FreeKey::join(request.stream, wanted), 0, 0, 0});
    const auto releasable = [&](uint32_t row) {
        return blocks[row].expandable_segment == kNoBlock && !is_split(blocks[row]);
    };
    if (at != pool.blocks.end() && pool.blocks[at].stream() == request.stream &&
        blocks[pool.blocks[at].block].expandable_segment == kNoBlock) {
        if (releasable(pool.blocks[at].block)) release_block(pool.blocks[at].block);
        return true;
    }
    if (at == pool.blocks.begin()) return false;
    // None is large enough: several of the largest.
    uint64_t released = 0;
    at = pool.blocks.previous(at);
    while (released < wanted && pool.blocks[at].size() >= settings.max_split_size &&
           pool.blocks[at].stream() == request.stream) {
        count_steps(1);
        const FreeKey key = pool.blocks[at];
        const bool first = at == pool.blocks.begin();
        const auto before = first ? at : pool.blocks.previous(at);
        if (releasable(key.block)) {
            released += key.size();
            release_block(key.block);
        }
        if (first) break;
        at = before;  // erasing what follows leaves it where it is
    }
    return released >= wanted;
}

// DeviceCachingAllocator::release_cached_blocks of the default pool id: what empty_cache and a
// retry do.
void Allocator::release_cached_blocks(bool in_scope) {
    if (!(in_scope && profile.scope_suppresses_release)) {
        synchronize_and_free_events(kEveryPool);
        release_blocks(0);
        release_blocks(1);
    }
    count_steps(freeable.size());
    for (uint32_t pool = 1; pool < freeable.size(); ++pool) {
        if (!freeable[pool]) continue;
        release_blocks(row_of(pool, true));
        release_blocks(row_of(pool, false));
    }
}

void Allocator::release_pool(uint32_t pool) {
    freeable[pool] = 1;
    synchronize_and_free_events(pool);
    release_blocks(row_of(pool, true));
    release_blocks(row_of(pool, false));
}

void Allocator::synchronize_and_free_events(uint32_t only_pool) {
    std::vector<uint32_t> done;
    count_steps(pending_.size());
    for (const auto& [turn, block] : pending_) {
        if (only_pool == kEveryPool || blocks[block].pool / 2 == only_pool) done.push_back(block);
    }
    if (done.empty()) return;
    surroundings_->order_of_completion(done);
    for (const uint32_t block : done) {
        surroundings_->event(kFreeCompleted, blocks[block].address, blocks[block].requested_size,
                             blocks[block].stream);
        complete(block);
    }
}

// DeviceCachingAllocator::release_blocks: whole cudaMalloc segments first, then whole handles, in
// the set's order.
void Allocator::release_blocks(uint32_t pool) {
    std::vector<uint32_t> to_free, to_unmap;
    const FreeBlocks& all = pools_[pool].blocks;
    count_steps(all.size());
    for (auto at = all.begin(); at != all.end(); at = all.next(at)) {
        const uint32_t row = all[at].block;
        if (blocks[row].expandable_segment != kNoBlock) {
            to_unmap.push_back(row);
        } else if (!is_split(blocks[row])) {
            to_free.push_back(row);
        }
    }
    for (const uint32_t row : to_free) release_block(row);
    for (const uint32_t row : to_unmap) unmap_block(row);
}

// DeviceCachingAllocator::release_block
void Allocator::release_block(uint32_t row) {
    const Block block = blocks[row];
    erase_from_blocks(row);
    total_allocated_memory -= block.size;
    stats.add(kReserved, -static_cast<int64_t>(block.size));
    ++stats.num_device_free;
    surroundings_->cuda_free(block.address, block.size);
    surroundings_->event(kSegmentFree, block.address, block.size, block.stream);
    delete_block(row);
}

}  // namespace vl::replay
