// A libFuzzer target: makes a recording's columns out of the input (some as an allocator might
// leave them, some as nothing would), proves it and asks it what-ifs. Built by tests/fuzz/run.sh.

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include <fuzzer/FuzzedDataProvider.h>

#include "snapshot.h"
#include "vramlens.h"

namespace {

constexpr uint64_t kMiB = 1 << 20;

class Maker {
  public:
    explicit Maker(const uint8_t* data, size_t size)
        : in_(data, size), wild_(in_.ConsumeIntegralInRange(0, 7) == 0) {}

    vl_replay_settings settings() {
        vl_replay_settings made{};
        made.expandable_segments = in_.ConsumeBool();
        made.tie_order = wild_ ? in_.ConsumeIntegral<int32_t>() : in_.ConsumeIntegralInRange(0, 2);
        made.scope_suppresses_release = in_.ConsumeBool();
        made.max_split_size =
            in_.ConsumeBool() ? UINT64_MAX : in_.ConsumeIntegralInRange<uint64_t>(20, 64) * kMiB;
        made.max_non_split_rounding_size = wild_ ? in_.ConsumeIntegral<uint64_t>() : 20 * kMiB;
        made.large_segment_size =
            wild_ ? in_.ConsumeIntegral<uint64_t>() : (in_.ConsumeBool() ? 40 : 20) * kMiB;
        for (uint64_t& division : made.roundup_power2_divisions) {
            division = wild_ ? in_.ConsumeIntegral<uint64_t>()
                             : uint64_t{1} << in_.ConsumeIntegralInRange(0, 5);
        }
        made.garbage_collection_threshold =
            wild_ ? in_.ConsumeFloatingPoint<double>() : in_.ConsumeIntegralInRange(0, 9) / 10.0;
        made.allowed_maximum = limit(), made.capacity = limit(), made.reject_above = limit();
        made.reserve = wild_ ? in_.ConsumeIntegral<uint64_t>()
                             : uint64_t{1} << in_.ConsumeIntegralInRange(24, 42);
        return made;
    }

    // The columns stay alive in this object.
    vl_replay_input input() {
        const auto events = in_.ConsumeIntegralInRange<size_t>(0, 160);
        const auto base_rows = in_.ConsumeIntegralInRange<size_t>(0, 6);
        const auto segments = in_.ConsumeIntegralInRange<size_t>(0, 5);
        const auto pools = in_.ConsumeIntegralInRange<uint32_t>(1, 3);
        for (size_t row = 0; row < base_rows; ++row)
            add_row(-1, address(), size(), stream(), pools);
        std::vector<int32_t> alive;
        for (size_t row = 0; row < base_rows; ++row) alive.push_back(static_cast<int32_t>(row));
        for (size_t e = 0; e < events; ++e) add_event(static_cast<int64_t>(e), pools, alive);
        for (size_t i = 0; i < segments; ++i) {
            base_address.push_back(address()), base_size.push_back(segment_size()),
                base_stream.push_back(stream());
            base_reservation.push_back(in_.ConsumeBool() ? base_address.back() : address());
            base_pool.push_back(pool(pools)), base_mapped.push_back(in_.ConsumeBool());
            base_small.push_back(in_.ConsumeBool());
        }
        vl_replay_input made{};
        made.settings = settings();
        made.pools = wild_ ? in_.ConsumeIntegral<int64_t>() : pools;
        made.events = static_cast<int64_t>(events);
        made.action = action.data(), made.address = event_address.data(),
        made.size = event_size.data();
        made.stream = event_stream.data(), made.emptied = emptied.data(),
        made.allocation = allocation.data();
        made.released_pool = released_pool.data();
        made.rows = static_cast<int64_t>(row_born.size());
        made.row_born = row_born.data(), made.row_address = row_address.data();
        made.row_requested = row_requested.data(), made.row_taken = row_taken.data();
        made.row_stream = row_stream.data(), made.row_pool = row_pool.data();
        made.row_scratch = row_scratch.data(), made.row_pending = row_pending.data();
        made.base_segments = static_cast<int64_t>(segments);
        made.base_address = base_address.data(), made.base_size = base_size.data();
        made.base_stream = base_stream.data(), made.base_reservation = base_reservation.data();
        made.base_pool = base_pool.data(), made.base_mapped = base_mapped.data(),
        made.base_small = base_small.data();
        return made;
    }

    vl_what_if what_if() {
        vl_what_if made{};
        made.settings = settings();
        made.addresses = in_.ConsumeIntegralInRange(-1, 4);
        made.completion = in_.ConsumeIntegralInRange(-1, 3);
        made.seed = in_.ConsumeIntegral<uint64_t>();
        return made;
    }

  private:
    FuzzedDataProvider in_;
    bool wild_;
    std::vector<uint8_t> action, emptied, row_scratch, row_pending, base_mapped, base_small;
    std::vector<uint64_t> event_address, event_size, event_stream, row_address, row_requested,
        row_taken, row_stream;
    std::vector<uint64_t> base_address, base_size, base_stream, base_reservation;
    std::vector<uint32_t> released_pool, row_pool, base_pool;
    std::vector<int32_t> allocation;
    std::vector<int64_t> row_born;

    uint64_t limit() {
        return in_.ConsumeBool() ? UINT64_MAX : in_.ConsumeIntegralInRange<uint64_t>(0, 200) * kMiB;
    }
    uint64_t address() {
        if (wild_) return in_.ConsumeIntegral<uint64_t>();
        return (uint64_t{1} << 40) + in_.ConsumeIntegralInRange<uint64_t>(0, 64) * 2 * kMiB +
               in_.ConsumeIntegralInRange<uint64_t>(0, 3) * 512;
    }
    uint64_t size() {
        if (wild_) return in_.ConsumeIntegral<uint64_t>();
        static constexpr uint64_t kSizes[] = {
            0, 1, 512, 513, kMiB, kMiB + 1, 3 * kMiB, 10 * kMiB, 30 * kMiB, uint64_t{1} << 40};
        return kSizes[in_.ConsumeIntegralInRange<size_t>(0, std::size(kSizes) - 1)];
    }
    uint64_t segment_size() {
        if (wild_) return in_.ConsumeIntegral<uint64_t>();
        static constexpr uint64_t kSizes[] = {2 * kMiB, 20 * kMiB, 40 * kMiB, 10 * kMiB, 6 * kMiB};
        return kSizes[in_.ConsumeIntegralInRange<size_t>(0, std::size(kSizes) - 1)];
    }
    uint64_t stream() {
        return wild_ ? in_.ConsumeIntegral<uint64_t>() : in_.ConsumeIntegralInRange<uint64_t>(0, 2);
    }
    uint32_t pool(uint32_t pools) {
        return wild_ ? in_.ConsumeIntegral<uint32_t>()
                     : in_.ConsumeIntegralInRange<uint32_t>(0, pools - 1);
    }
    void add_row(int64_t born, uint64_t at, uint64_t requested, uint64_t on, uint32_t pools) {
        row_born.push_back(born), row_address.push_back(at), row_requested.push_back(requested);
        row_taken.push_back(wild_ || in_.ConsumeBool() ? size() : (requested + 511) / 512 * 512);
        row_stream.push_back(on), row_pool.push_back(pool(pools)),
            row_scratch.push_back(in_.ConsumeBool());
        row_pending.push_back(born < 0 && in_.ConsumeBool());
    }
    void add_event(int64_t number, uint32_t pools, std::vector<int32_t>& alive) {
        static constexpr uint8_t kActions[] = {vl::kAlloc,         vl::kAlloc,
                                               vl::kFreeRequested, vl::kFreeCompleted,
                                               vl::kSegmentAlloc,  vl::kSegmentFree,
                                               vl::kSegmentMap,    vl::kSegmentUnmap,
                                               vl::kOom,           255};
        const uint8_t what =
            kActions[in_.ConsumeIntegralInRange<size_t>(0, std::size(kActions) - 1)];
        uint64_t at = address(),
                 bytes = what == vl::kAlloc || what == vl::kOom ? size() : segment_size();
        const uint64_t on = stream();
        int32_t row = -1;
        if (what == vl::kAlloc) {
            row = static_cast<int32_t>(row_born.size());
            add_row(number, at, bytes, on, pools);
            alive.push_back(row);
        } else if ((what == vl::kFreeRequested || what == vl::kFreeCompleted) && !alive.empty()) {
            row = alive[in_.ConsumeIntegralInRange<size_t>(0, alive.size() - 1)];
            at = row_address[static_cast<size_t>(row)],
            bytes = row_requested[static_cast<size_t>(row)];
        }
        if (wild_ && in_.ConsumeBool()) row = in_.ConsumeIntegral<int32_t>();
        action.push_back(what), event_address.push_back(at), event_size.push_back(bytes),
            event_stream.push_back(on);
        allocation.push_back(row), emptied.push_back(in_.ConsumeIntegralInRange<uint8_t>(0, 2));
        released_pool.push_back(pool(pools));
    }
};

// The same run with its curve comes to the same, and the curve runs forward and never above the
// peak.
void check_curve(const vl_replay* replay, const vl_what_if& asked, const vl_outcome& expected) {
    vl_outcome out;
    vl_curve* curve = vl_curve_make(replay, &asked, &out);
    vl_column event, reserved;
    if (curve == nullptr || std::memcmp(&out, &expected, sizeof out) != 0) std::abort();
    if (!vl_curve_column(curve, "event", &event) || !vl_curve_column(curve, "reserved", &reserved))
        std::abort();
    if (event.count < 1 || event.count != reserved.count || vl_curve_column(curve, "", &event))
        std::abort();
    const auto* at = static_cast<const int64_t*>(event.data);
    const auto* bytes = static_cast<const int64_t*>(reserved.data);
    for (int64_t i = 0; i < event.count; ++i) {
        if (bytes[i] > out.peak_reserved || (i > 0 && at[i] < at[i - 1])) std::abort();
        if (i > 1 && at[i] == at[i - 2]) std::abort();
    }
    vl_curve_free(curve);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Maker maker(data, size);
    const vl_replay_input input = maker.input();
    vl_replay* replay = vl_replay_make(&input);
    if (replay == nullptr) return 0;
    vl_column taken, summary;
    if (!vl_replay_column(replay, "taken", &taken) ||
        !vl_replay_column(replay, "summary", &summary))
        std::abort();
    if (taken.count != input.rows || vl_replay_column(replay, "", &taken)) std::abort();
    for (int i = 0; i < 4; ++i) {
        const vl_what_if asked = maker.what_if();
        vl_outcome out;
        if (!vl_replay_run(replay, &asked, &out)) continue;
        if (out.failures < out.new_failures || out.peak_reserved < 0) std::abort();
        check_curve(replay, asked, out);
    }
    vl_replay_free(replay);
    return 0;
}
