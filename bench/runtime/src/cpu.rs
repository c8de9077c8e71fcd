//! CPU placement and CPU time.

/// CPUs this process may use: the first is the servers', the last the clients'.
pub fn server_and_client() -> (usize, usize) {
    let cpus = pinion_runtime::real::available_cpus().expect("the affinity mask can be read");
    (cpus[0], cpus[cpus.len() - 1])
}

/// Pins the calling thread.
pub fn pin(cpu: usize) {
    // SAFETY: all zeroes is an empty set, `cpu` is below CPU_SETSIZE, and the set's size is passed
    // with it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set)
    };
    assert_eq!(result, 0, "CPU {cpu} cannot be used");
}

/// User and system time, in nanoseconds, of all threads of a process: what the scheduler accounts,
/// io_uring's worker threads included.
pub fn process_ns(pid: u32) -> u64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

/// The same for the calling thread.
pub fn thread_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
