// The C interface over the C++ parts: no exception leaves this file.

#include <cstring>
#include <exception>
#include <memory>
#include <new>

#include "layout.h"
#include "lifetimes.h"
#include "replay.h"
#include "replay_input.h"
#include "snapshot.h"

struct vl_snapshot {
    vl::Snapshot data;
};
struct vl_lifetimes {
    vl::Lifetimes data;
};
struct vl_replay {
    vl::replay::Replay data;
};
struct vl_curve {
    vl::replay::Curve data;
};

extern "C" {

int32_t vl_interface(void) {
    return VL_INTERFACE;
}

const char* vl_layout(void) {
    try {
        return vl::layout().c_str();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

vl_snapshot* vl_snapshot_read(vl_read_function read, void* context) {
    try {
        auto snapshot = std::make_unique<vl_snapshot>();
        vl::read_pickle(snapshot->data, read, context);
        return snapshot.release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

void vl_snapshot_status(const vl_snapshot* snapshot, vl_status* out) {
    *out = snapshot->data.status;
}

int32_t vl_snapshot_column(vl_snapshot* snapshot, const char* name, vl_column* out) {
    try {
        return vl::find_column(snapshot->data, name, out);
    } catch (const std::bad_alloc&) {
        return 0;
    }
}

int64_t vl_snapshot_json(vl_snapshot* snapshot, uint64_t value, char* buffer, int64_t capacity) {
    try {
        std::string out;
        if (!vl::write_json(snapshot->data, vl::Value{value}, static_cast<size_t>(capacity), out))
            return -1;
        std::memcpy(buffer, out.data(), out.size());
        return static_cast<int64_t>(out.size());
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

void vl_snapshot_free(vl_snapshot* snapshot) {
    delete snapshot;
}

vl_lifetimes* vl_lifetimes_make(const vl_device* device) {
    try {
        return new vl_lifetimes{vl::lifetimes_of(*device)};
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

int32_t vl_lifetimes_column(vl_lifetimes* lifetimes, const char* name, vl_column* out) {
    return vl::find_column(lifetimes->data, name, out);
}

void vl_lifetimes_free(vl_lifetimes* lifetimes) {
    delete lifetimes;
}

vl_replay* vl_replay_make(const vl_replay_input* input) {
    try {
        if (!vl::replay::is_sound(*input)) return nullptr;
        return new vl_replay{vl::replay::prove(*input)};
    } catch (const std::exception&) {  // no memory, or TooMuchWork
        return nullptr;
    }
}

int32_t vl_replay_column(vl_replay* replay, const char* name, vl_column* out) {
    return vl::replay::find_column(replay->data, name, out);
}

int32_t vl_replay_run(const vl_replay* replay, const vl_what_if* what_if, vl_outcome* out) {
    try {
        if (!vl::replay::is_sound(what_if->settings)) return 0;
        *out = vl::replay::outcome_of(replay->data, *what_if, nullptr);
        return 1;
    } catch (const std::exception&) {  // no memory, or TooMuchWork
        return 0;
    }
}

void vl_replay_free(vl_replay* replay) {
    delete replay;
}

vl_curve* vl_curve_make(const vl_replay* replay, const vl_what_if* what_if, vl_outcome* out) {
    try {
        if (!vl::replay::is_sound(what_if->settings)) return nullptr;
        auto curve = std::make_unique<vl_curve>();
        *out = vl::replay::outcome_of(replay->data, *what_if, &curve->data);
        return curve.release();
    } catch (const std::exception&) {  // no memory, or TooMuchWork
        return nullptr;
    }
}

vl_curve* vl_log_make(const vl_replay* replay, const vl_what_if* what_if, vl_outcome* out) {
    try {
        if (!vl::replay::is_sound(what_if->settings)) return nullptr;
        auto log = std::make_unique<vl_curve>(vl_curve{vl::replay::Curve(true)});
        *out = vl::replay::outcome_of(replay->data, *what_if, &log->data);
        return log.release();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

int32_t vl_curve_column(vl_curve* curve, const char* name, vl_column* out) {
    return curve->data.find_column(name, out);
}

void vl_curve_free(vl_curve* curve) {
    delete curve;
}

vl_device_and_stream vl_one_device(void*) {
    return {1, 0};
}

}  // extern "C"
