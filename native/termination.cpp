// SIGTERM without the interpreter: says that it came, and ends the process if nobody does so in time.
//
// A handler written in Python never runs while the main thread waits in C++, as in a collective. This one writes a byte
// to a pipe, which a thread of Python's reads, and starts a timer. The timer's own signal is SIGTERM again: it ends the
// process also where C code keeps the interpreter's lock, so that no such thread can run.

#include "vramlens.h"

#ifdef __linux__

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

int pipe_end = -1;
pid_t watched = 0;
timer_t timer;
itimerspec limit = {};
timespec deadline = {};
std::atomic<bool> has_come{false};

void die() {
    signal(SIGTERM, SIG_DFL);
    kill(getpid(), SIGTERM);  // blocked inside of the handler: delivered when it returns
}

bool is_over() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec != deadline.tv_sec ? now.tv_sec > deadline.tv_sec : now.tv_nsec >= deadline.tv_nsec;
}

// Only what POSIX calls async-signal-safe.
void on_sigterm(int) {
    const int saved = errno;
    if (getpid() != watched) {
        die();  // a forked child: the pipe and the thread are its parent's
    } else if (!has_come.exchange(true)) {
        clock_gettime(CLOCK_MONOTONIC, &deadline);
        deadline.tv_sec += limit.it_value.tv_sec;
        deadline.tv_nsec += limit.it_value.tv_nsec;
        if (deadline.tv_nsec >= 1'000'000'000) {
            deadline.tv_sec += 1;
            deadline.tv_nsec -= 1'000'000'000;
        }
        timer_settime(timer, 0, &limit, nullptr);
        if (write(pipe_end, "", 1) != 1) die();
    } else if (is_over()) {
        die();
    }  // else a second one while the recording is being written
    errno = saved;
}

bool is_ours(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == on_sigterm;
}

}  // namespace

int32_t vl_termination_watch(int32_t descriptor, int64_t limit_ms) {
    struct sigaction action = {};
    if (watched == getpid() || sigaction(SIGTERM, nullptr, &action) != 0) return 0;
    if ((action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != SIG_DFL) return 0;
    struct sigevent event = {};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGTERM;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return 0;
    limit.it_value.tv_sec = static_cast<time_t>(limit_ms / 1000);
    limit.it_value.tv_nsec = static_cast<long>(limit_ms % 1000) * 1'000'000;
    pipe_end = descriptor;
    watched = getpid();
    has_come = false;
    action = {};
    action.sa_handler = on_sigterm;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGTERM, &action, nullptr) == 0;
}

int32_t vl_termination_leave(void) {
    if (watched == getpid() && has_come) return 1;  // a second one must not end what the first one began
    struct sigaction action = {};
    if (sigaction(SIGTERM, nullptr, &action) == 0 && is_ours(action)) signal(SIGTERM, SIG_DFL);
    return watched == getpid() && has_come;
}

void vl_termination_die(void) { die(); }

#else

int32_t vl_termination_watch(int32_t, int64_t) { return 0; }
int32_t vl_termination_leave(void) { return 0; }
void vl_termination_die(void) {}

#endif
