// DeviceCachingAllocator of c10/cuda/CUDACachingAllocator.cpp as a simulator: one device, no memory
// behind it.
//
// Names are PyTorch's. The driver, and whoever wants to know what happened, are behind one
// interface.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "replay_free_blocks.h"
#include "replay_settings.h"
#include "snapshot.h"

namespace vl::replay {

struct Block {
    uint64_t address, size, requested_size;
    uint64_t
        gc_base;  // the pool's get_free_blocks_call_count when it became free; pending: its turn
    uint32_t prev, next;              // neighbours inside one segment
    uint32_t expandable_segment;      // its row, kNoBlock: a cudaMalloc segment
    uint32_t counter;                 // registration_counter
    uint32_t pool;                    // row in pools
    uint16_t stream;                  // its rank
    bool allocated, mapped, pending;  // pending: freed, but a stream may still use it
};

struct BlockPool {
    FreeBlocks blocks;  // free, mapped
    // In order of stream and address. The block itself is part of the key: a made-up recording can
    // have two reservations at one address, and neither may take the other's place.
    std::set<std::tuple<uint16_t, uint64_t, uint32_t>> unmapped;
    uint64_t get_free_blocks_call_count = 0;
    bool is_small = false;
    bool is_private = false;
};

struct ExpandableSegment {
    uint64_t address, size, handle_size;
};

// memory_stats(), each with its maximum.
enum Counter { kRequested, kAllocated, kActive, kReserved, kInactiveSplit, kCounterCount };

struct Stats {
    int64_t current[kCounterCount] = {};
    int64_t peak[kCounterCount] = {};
    int64_t num_alloc_retries = 0, num_ooms = 0, num_device_alloc = 0, num_device_free = 0,
            allocations = 0;
    int64_t ties = 0;  // a choice among equals of several segments, which their addresses decided
    int64_t refusals = 0;  // segments that could not be had

    void add(Counter counter, int64_t bytes) {
        // Wraps around rather than be undefined: a made-up recording can add up to anything.
        current[counter] = static_cast<int64_t>(static_cast<uint64_t>(current[counter]) +
                                                static_cast<uint64_t>(bytes));
        if (current[counter] > peak[counter]) peak[counter] = current[counter];
    }
};

// Thrown where a made-up recording would keep the replay busy out of proportion to its length.
struct TooMuchWork : std::exception {};

// The driver, and what is told of each event; a block's own events are known to the caller.
class Surroundings {
  public:
    virtual ~Surroundings() = default;
    // Whether the process may reserve so much more: asked where the limit is not known in bytes.
    virtual bool admits(uint64_t alloc_size) = 0;
    virtual bool cuda_malloc(uint64_t size, uint16_t stream, uint64_t& address) = 0;
    virtual void cuda_free(uint64_t address, uint64_t size) = 0;
    virtual bool cu_mem_map(uint64_t address, uint64_t size) = 0;
    virtual uint64_t reserve_addresses(uint64_t size) = 0;
    // Each thing that happens inside a call, in order: free_completed, segment_*, oom.
    virtual void event(Action action, uint64_t address, uint64_t size, uint16_t stream) = 0;
    // The pending blocks, oldest first, in the order in which a synchronisation completes them.
    virtual void order_of_completion(std::vector<uint32_t>& blocks) = 0;
};

class Allocator {
  public:
    Settings settings;
    Profile profile;
    Stats stats;
    std::vector<Block> blocks;
    std::vector<uint8_t>
        freeable;  // by private pool: use_count is 0, so that a release returns its memory
    uint64_t total_allocated_memory = 0;
    int64_t steps_left = INT64_MAX;  // of walks over blocks and pools

    // Pool 0 is the default one.
    Allocator(const Settings& settings, const Profile& profile, size_t pool_count);
    void attach(Surroundings* surroundings) { surroundings_ = surroundings; }

    // The block, or kNoBlock where the request fails. In a scope: inside use_mem_pool or a graph's
    // capture.
    uint32_t malloc(uint64_t requested, uint16_t stream, uint32_t pool, bool in_scope);
    void free(uint32_t block);        // no stream uses it any more
    void free_later(uint32_t block);  // a stream may still use it
    void complete(uint32_t block);    // that stream is done
    void empty_cache() { release_cached_blocks(false); }
    void release_pool(uint32_t pool);  // ~MemPool: its memory goes back at once

    // State from before the recording: a segment, one block long, and its parts.
    uint32_t place_segment(uint64_t address, uint64_t size, uint16_t stream, uint32_t pool,
                           bool small);
    uint32_t place_reservation(uint64_t address, uint64_t size, uint16_t stream, uint32_t pool,
                               bool small);
    uint32_t place_mapped(uint32_t unmapped, uint64_t address, uint64_t size);
    uint32_t place_block(uint32_t free_block, uint64_t address, uint64_t size, uint64_t requested);
    // What a copy of this takes, in blocks.
    int64_t weight() const { return static_cast<int64_t>(blocks.size() + 2 * pools_.size()); }
    uint32_t row_of(uint32_t pool, bool small) const { return 2 * pool + (small ? 1 : 0); }
    bool allocatable(uint32_t block) const {
        return block != kNoBlock && !blocks[block].allocated && !blocks[block].pending;
    }

  private:
    struct Request {  // AllocParams
        uint64_t size, alloc_size;
        uint16_t stream;
        uint32_t pool;
    };

    Surroundings* surroundings_ = nullptr;
    std::vector<BlockPool> pools_;  // two for each pool: large, small
    std::vector<uint32_t> unused_blocks_;
    std::map<uint64_t, uint32_t> pending_;  // by turn: oldest first
    uint64_t turns_ = 0;
    std::vector<ExpandableSegment> expandable_segments_;
    uint32_t counters_ = 0;

    bool gc_on() const {
        return settings.allowed_maximum != kUnlimited && settings.garbage_collection_threshold > 0;
    }
    void count_steps(size_t steps) {
        steps_left -= static_cast<int64_t>(steps);
        if (steps_left < 0) throw TooMuchWork();
    }
    std::tuple<uint16_t, uint64_t, uint32_t> unmapped_key(uint32_t block) const {
        return {blocks[block].stream, blocks[block].address, block};
    }
    bool is_split(const Block& block) const {
        return block.prev != kNoBlock || block.next != kNoBlock;
    }
    uint32_t new_block(const Block& block, uint32_t inherited_counter, bool new_segment);
    void delete_block(uint32_t block) { unused_blocks_.push_back(block); }
    FreeKey key_of(uint32_t block) const;
    void insert_into_blocks(uint32_t block);
    void erase_from_blocks(uint32_t block) {
        pools_[blocks[block].pool].blocks.erase(key_of(block));
    }
    void link_after(uint32_t block, uint32_t follower);

    // replay_allocator.cpp
    uint32_t get_free_block(const Request& request);
    uint32_t alloc_block(const Request& request, bool is_retry);
    bool should_split(uint32_t block, uint64_t size) const;
    uint32_t alloc_found_block(const Request& request, uint64_t requested, uint32_t block);
    void free_block(uint32_t block);
    uint64_t try_merge_blocks(uint32_t into, uint32_t from);

    // replay_expandable.cpp
    uint32_t find_expandable_block(const Request& request);
    uint32_t try_allocate_expandable_block(const Request& request);
    bool map_block(uint32_t block, uint64_t size);
    uint64_t size_to_map(uint32_t block, uint64_t size) const;
    void map(uint32_t block, uint64_t mapped);
    void unmap_block(uint32_t block);

    // replay_release.cpp
    void garbage_collect_cached_blocks();
    bool release_available_cached_blocks(const Request& request);
    void release_cached_blocks(bool in_scope);
    void synchronize_and_free_events(uint32_t only_pool);
    void release_blocks(uint32_t pool);
    void release_block(uint32_t block);
};

}  // namespace vl::replay
