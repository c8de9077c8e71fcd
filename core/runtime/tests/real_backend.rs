//! The real backend end to end: sockets, files, timers and the mesh on this machine's kernel.
#![allow(
    clippy::disallowed_methods,
    reason = "the tests' own directories and processes are outside of the runtime"
)]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pinion_runtime::real::{RealOptions, StartError, available_cpus, choose_cpus, run};
use pinion_runtime::{
    Connection, CoreId, DmaBuf, File, Listener, OpenOptions, Queue, connect, core_count, core_id,
    fs, now, offload_bounded, on_all_cores, request_shutdown, resolve, shutdown_requested, sleep,
    spawn, stats, submit_to, timeout, yield_now,
};

/// Runs on this many cores, which share CPUs where the machine has fewer.
fn on_cores<R: Send + 'static, Fut: Future<Output = R> + 'static>(
    cores: usize,
    main: impl Fn(CoreId) -> Fut + Send + Clone + 'static,
) -> Vec<R> {
    let cpus = available_cpus().unwrap();
    let cpus = (0..cores).map(|core| cpus[core % cpus.len()]).collect();
    run(
        RealOptions {
            cpus,
            spin: Duration::from_micros(20),
            handle_signals: false,
            on_usr1: None,
            on_quiet: None,
            on_large: None,
            on_idle: None,
        },
        main,
    )
    .unwrap()
}

fn temp_dir(name: &str) -> std::path::PathBuf {
    // Not in the system's directory for temporary files, which may lie in memory and refuse direct
    // I/O.
    let path = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

async fn echo(connection: Connection) {
    let mut input = BytesMut::new();
    while let Ok(1..) = connection.recv(&mut input).await {
        if connection.send(input.split().freeze()).await.is_err() {
            break;
        }
    }
}

async fn read_exactly(connection: &Connection, len: usize) -> BytesMut {
    let mut input = BytesMut::new();
    while input.len() < len {
        assert!(
            connection.recv(&mut input).await.unwrap() > 0,
            "closed after {} of {len} bytes",
            input.len()
        );
    }
    input
}

#[test]
fn mains_run_on_every_core_and_return() {
    let results = on_cores(3, |core| async move {
        assert_eq!((core, core_count()), (core_id(), 3));
        sleep(Duration::from_millis(3 - core.0 as u64)).await;
        core.0 * 10
    });
    assert_eq!(results, [0, 10, 20]);
}

#[test]
fn connections_are_handed_over_and_echo() {
    on_cores(2, |core| async move {
        if core.0 != 0 {
            return;
        }
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = listener.local_addr();
        spawn(Queue::Foreground, async move {
            for turn in 0.. {
                let incoming = listener.accept().await.unwrap();
                let target = CoreId(turn % 2);
                submit_to(target, Queue::Foreground, move || async move {
                    let connection = incoming.attach().unwrap();
                    spawn(Queue::Foreground, echo(connection));
                })
                .await;
            }
        });
        let clients: Vec<_> = (0..50u32)
            .map(|client| {
                spawn(Queue::Foreground, async move {
                    let connection = connect(address).await.unwrap();
                    for round in 0..20u32 {
                        let message = vec![
                            (client + round) as u8;
                            (client * 997 + round * 31) as usize % 40_000 + 1
                        ];
                        connection.send(Bytes::from(message.clone())).await.unwrap();
                        assert_eq!(read_exactly(&connection, message.len()).await, message);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
    });
}

#[test]
fn host_names_are_resolved_without_holding_the_core() {
    on_cores(1, |_| async {
        let found = resolve("localhost", 27017).await.unwrap();
        assert!(found.iter().any(|found| found.ip().is_loopback()));
        assert!(found.iter().all(|found| found.port() == 27017));
        let literal = resolve("192.0.2.1", 5).await.unwrap();
        assert_eq!(literal, ["192.0.2.1:5".parse().unwrap()]);
        assert!(resolve("no such host", 27017).await.is_err());
    });
}

#[test]
fn large_messages_meet_back_pressure_and_arrive_whole() {
    on_cores(1, |_| async {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = listener.local_addr();
        let sender = spawn(Queue::Foreground, async move {
            let connection = listener.accept().await.unwrap().attach().unwrap();
            let sent = Rc::new(Cell::new(0usize));
            let counter = sent.clone();
            let writer = connection.clone();
            let writing = spawn(Queue::Foreground, async move {
                for piece in 0..1000u32 {
                    writer
                        .send(Bytes::from(vec![piece as u8; 64 * 1024]))
                        .await
                        .unwrap();
                    counter.set(counter.get() + 64 * 1024);
                }
                writer.flush().await.unwrap();
                writer.shutdown_write();
            });
            sleep(Duration::from_millis(200)).await;
            let stalled_at = sent.get();
            sleep(Duration::from_millis(100)).await;
            assert_eq!(
                stalled_at,
                sent.get(),
                "a peer that does not read must stop the sender"
            );
            assert!(stalled_at < 40 * 1024 * 1024);
            writing.await.unwrap();
            // The peer closes once it has all.
            assert_eq!(connection.recv(&mut BytesMut::new()).await.unwrap(), 0);
        });
        let connection = connect(address).await.unwrap();
        sleep(Duration::from_millis(350)).await;
        let before = stats().network_in_bytes;
        assert!(
            before < 2 * 1024 * 1024,
            "unread input is bounded, but {before} bytes were taken"
        );
        let mut input = BytesMut::new();
        let mut total = 0usize;
        loop {
            if connection.recv(&mut input).await.unwrap() == 0 {
                break;
            }
            for byte in input.split() {
                assert_eq!(byte, (total / (64 * 1024)) as u8);
                total += 1;
            }
        }
        assert_eq!(total, 1000 * 64 * 1024);
        drop(connection);
        sender.await.unwrap();
    });
}

#[test]
fn dropping_a_connection_still_sends_and_closing_does_not_wait() {
    on_cores(1, |_| async {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = listener.local_addr();
        let client = connect(address).await.unwrap();
        let server = listener.accept().await.unwrap().attach().unwrap();
        server.send(Bytes::from(vec![7; 3_000_000])).await.unwrap();
        drop(server);
        assert_eq!(read_exactly(&client, 3_000_000).await.len(), 3_000_000);
        assert_eq!(client.recv(&mut BytesMut::new()).await.unwrap(), 0);
        drop(client);

        let client = connect(address).await.unwrap();
        let server = listener.accept().await.unwrap().attach().unwrap();
        let reader = server.clone();
        let waiting = spawn(Queue::Foreground, async move {
            reader.recv(&mut BytesMut::new()).await
        });
        yield_now().await;
        server.close();
        assert!(waiting.await.unwrap().is_err());
        assert!(server.send(Bytes::from_static(b"x")).await.is_err());
        assert!(matches!(
            client.recv(&mut BytesMut::new()).await,
            Ok(0) | Err(_)
        ));
        drop((client, server));
        timeout(Duration::from_secs(5), async {
            while stats().connections_open > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .expect("closed connections leave nothing behind");
    });
}

#[test]
fn connecting_without_a_listener_fails() {
    on_cores(1, |_| async {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = listener.local_addr();
        drop(listener);
        sleep(Duration::from_millis(10)).await;
        assert!(connect(address).await.is_err());
    });
}

#[test]
fn files_read_what_was_written() {
    let dir = temp_dir("files");
    let path = dir.clone();
    on_cores(1, move |_| {
        let dir = path.clone();
        async move {
            let path = dir.join("data");
            let file = File::open(&path, OpenOptions::create_new()).await.unwrap();
            assert!(File::open(&path, OpenOptions::create_new()).await.is_err());
            file.allocate(1 << 20).await.unwrap();
            assert_eq!(file.len().await.unwrap(), 1 << 20);
            let mut data = DmaBuf::zeroed(64 * 1024);
            data.iter_mut()
                .enumerate()
                .for_each(|(index, byte)| *byte = index as u8);
            file.write_at(128 * 1024, data).await.unwrap();
            let flushes = stats().device_flushes;
            file.datasync().await.unwrap();
            assert_eq!(stats().device_flushes, flushes + 1);
            fs::sync_dir(&dir).await.unwrap();
            let back = file.read_at(128 * 1024, 64 * 1024).await.unwrap();
            assert!(
                back.iter()
                    .enumerate()
                    .all(|(index, byte)| *byte == index as u8)
            );
            assert!(
                file.read_at(0, 4096)
                    .await
                    .unwrap()
                    .iter()
                    .all(|byte| *byte == 0)
            );
            file.set_len(10_000).await.unwrap();
            assert_eq!(file.read_at(8192, 8192).await.unwrap().len(), 10_000 - 8192);
            assert_eq!(file.read_at(1 << 20, 4096).await.unwrap().len(), 0);
            // A future dropped in flight leaves its buffer with the kernel until it is done.
            drop(timeout(Duration::ZERO, file.write_at(0, DmaBuf::zeroed(1 << 20))).await);

            assert_eq!(fs::read_dir(&dir).await.unwrap(), ["data"]);
            fs::rename(&path, dir.join("other")).await.unwrap();
            assert!(!fs::exists(&path).await.unwrap());
            assert_eq!(
                fs::read_small(dir.join("other")).await.unwrap().len() as u64,
                fs::file_len(dir.join("other")).await.unwrap()
            );
            let lock = fs::lock(&dir).await.unwrap();
            assert!(fs::lock(&dir).await.is_err());
            drop(lock);
            fs::lock(&dir).await.unwrap();
            assert!(fs::space(&dir).await.unwrap().free_bytes > 0);
            fs::remove_file(dir.join("other")).await.unwrap();
        }
    });
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn cores_that_fill_each_others_queues_do_not_stop() {
    let totals = on_cores(3, |core| async move {
        let tasks: Vec<_> = (0..2000u64)
            .map(|n| {
                spawn(Queue::Foreground, async move {
                    let target = CoreId(((core.0 as u64 + 1 + n % 2) % 3) as u16);
                    submit_to(target, Queue::Foreground, move || async move {
                        if n % 7 == 0 {
                            yield_now().await;
                        }
                        n
                    })
                    .await
                })
            })
            .collect();
        let mut total = 0;
        for task in tasks {
            total += task.await.unwrap();
        }
        total
    });
    assert_eq!(totals, [2000 * 1999 / 2; 3]);
}

#[test]
fn sleeping_cores_are_woken_by_messages() {
    on_cores(2, |core| async move {
        if core.0 == 0 {
            for _ in 0..30 {
                sleep(Duration::from_millis(2)).await;
                let there = submit_to(CoreId(1), Queue::Background, || async { core_id() }).await;
                assert_eq!(there, CoreId(1));
            }
            assert_eq!(on_all_cores(|core| async move { core.0 }).await, [0, 1]);
        }
    });
}

#[test]
fn background_work_does_not_keep_the_foreground_waiting() {
    on_cores(1, |_| async {
        let stop = Rc::new(Cell::new(false));
        let done = Rc::new(Cell::new(0u64));
        for _ in 0..4 {
            let (stop, done) = (stop.clone(), done.clone());
            spawn(Queue::Background, async move {
                while !stop.get() {
                    let until = now() + Duration::from_micros(50);
                    while now() < until {}
                    done.set(done.get() + 1);
                    yield_now().await;
                }
            });
        }
        for _ in 0..50 {
            sleep(Duration::from_millis(1)).await;
        }
        stop.set(true);
        assert!(
            done.get() > 300,
            "the background queue ran only {} times",
            done.get()
        );
    });
}

#[test]
fn a_request_shuts_all_cores_down() {
    let results = on_cores(2, |core| async move {
        if core.0 == 1 {
            sleep(Duration::from_millis(5)).await;
            request_shutdown();
        }
        shutdown_requested().await;
        true
    });
    assert_eq!(results, [true, true]);
}

#[test]
fn a_signal_requests_shutdown() {
    let cpus = vec![available_cpus().unwrap()[0]; 2];
    let options = RealOptions {
        cpus,
        spin: Duration::ZERO,
        handle_signals: true,
        on_usr1: None,
        on_quiet: None,
        on_large: None,
        on_idle: None,
    };
    let results = run(options, |core| async move {
        if core.0 == 1 {
            let killed = std::process::Command::new("kill")
                .args(["-TERM", &std::process::id().to_string()])
                .status();
            assert!(killed.unwrap().success());
        }
        timeout(Duration::from_secs(10), shutdown_requested())
            .await
            .is_ok()
    });
    assert_eq!(results.unwrap(), [true, true]);
}

#[test]
fn many_small_sends_of_many_connections_survive_a_lack_of_receive_buffers() {
    on_cores(1, |_| async {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = listener.local_addr();
        spawn(Queue::Foreground, async move {
            loop {
                let connection = listener.accept().await.unwrap().attach().unwrap();
                // A slow reader, so that every connection's bytes pile up.
                spawn(Queue::Foreground, async move {
                    sleep(Duration::from_millis(30)).await;
                    echo(connection).await;
                });
            }
        });
        const EACH: usize = 200_000;
        let clients: Vec<_> = (0..100u32)
            .map(|client| {
                spawn(Queue::Foreground, async move {
                    let connection = connect(address).await.unwrap();
                    let writer = connection.clone();
                    let writing = spawn(Queue::Foreground, async move {
                        for piece in vec![client as u8; EACH].chunks(1111) {
                            writer.send(Bytes::copy_from_slice(piece)).await.unwrap();
                        }
                    });
                    let echoed = read_exactly(&connection, EACH).await;
                    assert!(echoed.iter().all(|&byte| byte == client as u8));
                    writing.await.unwrap();
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
    });
}

#[test]
fn a_panic_stops_the_node_with_a_message() {
    let cpus = vec![available_cpus().unwrap()[0]; 2];
    let options = RealOptions {
        cpus,
        spin: Duration::ZERO,
        handle_signals: false,
        on_usr1: None,
        on_quiet: None,
        on_large: None,
        on_idle: None,
    };
    let error = run(options, |core| async move {
        if core.0 == 1 {
            spawn(Queue::Background, async { panic!("the planted panic") });
        }
        sleep(Duration::from_secs(60)).await;
    })
    .unwrap_err();
    match error {
        StartError::Panicked { core: 1, message } => assert_eq!(message, "the planted panic"),
        other => panic!("unexpected: {other}"),
    }
}

/// Each of the two kinds has a thread here.
#[test]
fn a_thread_for_computations_says_when_it_has_no_work() {
    static IDLE_CALLS: AtomicUsize = AtomicUsize::new(0);
    let options = RealOptions {
        cpus: choose_cpus(Some(1)).unwrap(),
        handle_signals: false,
        on_idle: Some(|| {
            IDLE_CALLS.fetch_add(1, Ordering::SeqCst);
        }),
        ..RealOptions::default()
    };
    run(options, |_| async {
        assert_eq!(offload_bounded(|| 7).await, 7);
        assert_eq!(IDLE_CALLS.load(Ordering::SeqCst), 0);
        while IDLE_CALLS.load(Ordering::SeqCst) < 2 {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(offload_bounded(|| 8).await, 8);
    })
    .unwrap();
}

#[test]
fn a_task_that_holds_its_core_is_counted() {
    on_cores(1, |_| async {
        assert_eq!(stats().stalls, 0);
        std::thread::sleep(Duration::from_millis(15));
        yield_now().await;
        assert_eq!(stats().stalls, 1);
    });
}

/// The kernel divides the CPU between the core and threads that burn it too: the core's task needs
/// several times its time on the clock, and holds nothing meanwhile. What a hypervisor takes is not
/// reported and counts as the task's, so that a few of the polls may be stalls; if waiting counted,
/// all would be.
#[test]
fn time_that_others_had_the_processor_is_no_stall() {
    const BURNERS: usize = 4;
    const OWN_TIME: Duration = Duration::from_millis(2);
    const LONG: Duration = Duration::from_millis(11);
    const LONG_POLLS: u64 = 20;
    const POLLS: u64 = 5_000;
    let cpu = choose_cpus(Some(1)).unwrap()[0];
    let stop = Arc::new(AtomicBool::new(false));
    let burn = |stop: Arc<AtomicBool>| {
        std::thread::spawn(move || {
            // SAFETY: all zeroes is a valid, empty set, and its size is passed along with it.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                assert_eq!(
                    libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set),
                    0
                );
            }
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    };
    let burners = [(); BURNERS].map(|()| burn(stop.clone()));
    on_cores(1, |_| async {
        let (mut polls, mut long_polls) = (0, 0);
        while long_polls < LONG_POLLS {
            assert!(polls < POLLS, "{long_polls} polls waited");
            polls += 1;
            let (clock, used) = (now(), thread_time());
            while thread_time() - used < OWN_TIME {
                std::hint::spin_loop();
            }
            long_polls += u64::from(now() - clock > LONG);
            yield_now().await;
        }
        let stalls = stats().stalls;
        assert!(stalls < LONG_POLLS / 2, "{stalls} of {LONG_POLLS}");
    });
    stop.store(true, Ordering::Relaxed);
    for burner in burners {
        burner.join().unwrap();
    }
}

/// How long this thread has run.
fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn impossible_options_are_refused() {
    let none = RealOptions {
        cpus: vec![],
        ..RealOptions::default()
    };
    assert!(matches!(
        run(none, |_| async {}),
        Err(StartError::Options(_))
    ));
    let absent = RealOptions {
        cpus: vec![100_000],
        ..RealOptions::default()
    };
    assert!(matches!(
        run(absent, |_| async {}),
        Err(StartError::Options(_))
    ));
    let all = choose_cpus(None).unwrap();
    assert_eq!(choose_cpus(Some(1)).unwrap(), all[..1]);
    assert!(matches!(choose_cpus(Some(0)), Err(StartError::Options(_))));
    assert!(matches!(
        choose_cpus(Some(all.len() + 1)),
        Err(StartError::Options(_))
    ));
}
