//! Files and directories.

use std::io::ErrorKind;

use pinion_runtime::{
    ALIGN, CoreId, DmaBuf, File, MappedFile, OpenOptions, Queue, fs, join_all, stats, submit_to,
};

use crate::{path, suite};

suite! {
    what_was_written_is_read(1),
    reads_end_where_the_file_ends(1),
    transfers_must_be_aligned(1),
    open_options_say_what_may_exist(1),
    a_file_opened_for_reading_refuses_writes(1),
    lengths_can_be_set(1),
    many_writes_at_once(1),
    flushes_are_counted(1),
    names_can_be_listed_changed_and_removed(1),
    a_removed_file_stays_readable_while_open(1),
    a_mapped_file_is_read_in_parts(1),
    small_files_are_read_whole(1),
    directories_are_made_with_their_parents(1),
    one_holder_locks_a_directory(2),
    there_is_free_space(1),
    another_core_sees_the_same_file(2),
}

/// A buffer whose content depends on `seed` and on the place.
fn pattern(len: usize, seed: u8) -> DmaBuf {
    let mut buffer = DmaBuf::zeroed(len);
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = (index / 7) as u8 ^ (index >> 8) as u8 ^ seed;
    }
    buffer
}

async fn create(name: &str) -> File {
    File::open(path(name), OpenOptions::create_new())
        .await
        .unwrap()
}

async fn what_was_written_is_read() {
    let file = create("a").await;
    for (index, len) in [ALIGN, 3 * ALIGN, 64 * ALIGN, 512 * ALIGN]
        .into_iter()
        .enumerate()
    {
        let offset = (index * 600 * ALIGN) as u64;
        file.write_at(offset, pattern(len, index as u8))
            .await
            .unwrap();
        assert_eq!(
            *file.read_at(offset, len).await.unwrap(),
            *pattern(len, index as u8)
        );
    }
    let parts: Vec<_> = (1..4)
        .map(|n| pattern(n * ALIGN, n as u8).into_bytes())
        .collect();
    let offset = 4000 * ALIGN as u64;
    file.write_parts_at(offset, parts.clone()).await.unwrap();
    assert_eq!(
        *file.read_at(offset, 6 * ALIGN).await.unwrap(),
        *parts.concat()
    );
    let unaligned = vec![parts[0].clone(), parts[1].slice(1..=ALIGN)];
    assert!(file.write_parts_at(offset, unaligned).await.is_err());
    // What lies between is zero.
    assert!(
        file.read_at(2 * ALIGN as u64, ALIGN)
            .await
            .unwrap()
            .iter()
            .all(|byte| *byte == 0)
    );
    file.write_at(0, pattern(ALIGN, 99)).await.unwrap();
    file.datasync().await.unwrap();
    file.close().await.unwrap();
    let file = File::open(path("a"), OpenOptions::read()).await.unwrap();
    assert_eq!(*file.read_at(0, ALIGN).await.unwrap(), *pattern(ALIGN, 99));
}

async fn reads_end_where_the_file_ends() {
    let file = create("a").await;
    assert_eq!(file.read_at(0, ALIGN).await.unwrap().len(), 0);
    file.write_at(0, pattern(2 * ALIGN, 1)).await.unwrap();
    assert_eq!(
        *file.read_at(ALIGN as u64, 4 * ALIGN).await.unwrap(),
        pattern(2 * ALIGN, 1)[ALIGN..]
    );
    assert_eq!(
        file.read_at(2 * ALIGN as u64, ALIGN).await.unwrap().len(),
        0
    );
    assert_eq!(
        file.read_at(100 * ALIGN as u64, ALIGN).await.unwrap().len(),
        0
    );
    file.set_len(ALIGN as u64 + 10).await.unwrap();
    assert_eq!(
        *file.read_at(0, 2 * ALIGN).await.unwrap(),
        pattern(2 * ALIGN, 1)[..ALIGN + 10]
    );
}

async fn transfers_must_be_aligned() {
    let file = create("a").await;
    file.write_at(0, pattern(2 * ALIGN, 1)).await.unwrap();
    for (offset, len) in [(1, ALIGN), (512, ALIGN), (0, 0), (0, 100), (0, ALIGN + 512)] {
        assert_eq!(
            file.read_at(offset, len).await.unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        let refused = file.write_at(offset, DmaBuf::zeroed(len)).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(
        *file.read_at(0, 2 * ALIGN).await.unwrap(),
        *pattern(2 * ALIGN, 1)
    );
}

async fn open_options_say_what_may_exist() {
    let open = async |options| {
        File::open(path("a"), options)
            .await
            .map(drop)
            .map_err(|error| error.kind())
    };
    assert_eq!(open(OpenOptions::read()).await, Err(ErrorKind::NotFound));
    assert_eq!(open(OpenOptions::write()).await, Err(ErrorKind::NotFound));
    assert_eq!(open(OpenOptions::create_new()).await, Ok(()));
    assert_eq!(
        open(OpenOptions::create_new()).await,
        Err(ErrorKind::AlreadyExists)
    );
    let file = File::open(path("a"), OpenOptions::create()).await.unwrap();
    file.write_at(0, pattern(ALIGN, 1)).await.unwrap();
    assert_eq!(open(OpenOptions::create()).await, Ok(()));
    assert_eq!(fs::file_len(path("a")).await.unwrap(), ALIGN as u64);
    assert_eq!(open(OpenOptions::write().truncate()).await, Ok(()));
    assert_eq!(fs::file_len(path("a")).await.unwrap(), 0);
    let nonsense = OpenOptions {
        create: true,
        ..OpenOptions::read()
    };
    assert_eq!(open(nonsense).await, Err(ErrorKind::InvalidInput));
    let missing = File::open(path("no/such/directory"), OpenOptions::create()).await;
    assert_eq!(
        missing.map(drop).map_err(|error| error.kind()),
        Err(ErrorKind::NotFound)
    );
}

async fn a_file_opened_for_reading_refuses_writes() {
    create("a")
        .await
        .write_at(0, pattern(ALIGN, 1))
        .await
        .unwrap();
    let file = File::open(path("a"), OpenOptions::read()).await.unwrap();
    assert!(file.write_at(0, pattern(ALIGN, 2)).await.is_err());
    assert_eq!(*file.read_at(0, ALIGN).await.unwrap(), *pattern(ALIGN, 1));
}

async fn lengths_can_be_set() {
    let file = create("a").await;
    file.allocate(10 * ALIGN as u64).await.unwrap();
    assert_eq!(file.len().await.unwrap(), 10 * ALIGN as u64);
    assert!(
        file.read_at(9 * ALIGN as u64, ALIGN)
            .await
            .unwrap()
            .iter()
            .all(|byte| *byte == 0)
    );
    // Allocating less than there is cuts nothing.
    file.allocate(ALIGN as u64).await.unwrap();
    assert_eq!(file.len().await.unwrap(), 10 * ALIGN as u64);
    file.write_at(0, pattern(4 * ALIGN, 3)).await.unwrap();
    file.set_len(2 * ALIGN as u64).await.unwrap();
    file.set_len(4 * ALIGN as u64).await.unwrap();
    let content = file.read_at(0, 8 * ALIGN).await.unwrap();
    assert_eq!(content.len(), 4 * ALIGN);
    assert_eq!(content[..2 * ALIGN], pattern(4 * ALIGN, 3)[..2 * ALIGN]);
    assert!(
        content[2 * ALIGN..].iter().all(|byte| *byte == 0),
        "what was cut off does not come back"
    );
}

async fn many_writes_at_once() {
    let file = create("a").await;
    let writes = (0..64u64).map(|n| {
        let file = file.clone();
        async move {
            file.write_at(n * ALIGN as u64, pattern(ALIGN, n as u8))
                .await
                .unwrap()
        }
    });
    join_all(writes).await;
    file.datasync().await.unwrap();
    let content = file.read_at(0, 64 * ALIGN).await.unwrap();
    for (n, block) in content.chunks(ALIGN).enumerate() {
        assert_eq!(*block, *pattern(ALIGN, n as u8));
    }
}

async fn flushes_are_counted() {
    let file = create("a").await;
    let before = stats();
    for n in 0..5 {
        file.write_at(0, pattern(ALIGN, n)).await.unwrap();
        file.datasync().await.unwrap();
        assert!(stats().device_flushes > before.device_flushes + u64::from(n));
    }
    let flushed = stats().device_flushes;
    file.write_durable_at(ALIGN as u64, pattern(ALIGN, 9))
        .await
        .unwrap();
    assert!(stats().device_flushes > flushed);
    assert_eq!(
        *file.read_at(ALIGN as u64, ALIGN).await.unwrap(),
        *pattern(ALIGN, 9)
    );
    file.read_at(0, ALIGN).await.unwrap();
    let after = stats();
    assert!(after.file_writes >= before.file_writes + 5 && after.file_reads > before.file_reads);
    assert!(after.file_write_bytes >= before.file_write_bytes + 5 * ALIGN as u64);
    assert!(after.file_read_bytes >= before.file_read_bytes + ALIGN as u64);
}

async fn names_can_be_listed_changed_and_removed() {
    fs::create_dir_all(path("d")).await.unwrap();
    for (n, name) in ["d/b", "d/c", "d/a"].into_iter().enumerate() {
        create(name)
            .await
            .write_at(0, pattern(ALIGN, n as u8))
            .await
            .unwrap();
    }
    assert_eq!(fs::read_dir(path("d")).await.unwrap(), ["a", "b", "c"]);
    fs::rename(path("d/b"), path("d/z")).await.unwrap();
    fs::rename(path("d/c"), path("d/a")).await.unwrap();
    assert_eq!(fs::read_dir(path("d")).await.unwrap(), ["a", "z"]);
    let file = File::open(path("d/a"), OpenOptions::read()).await.unwrap();
    assert_eq!(*file.read_at(0, ALIGN).await.unwrap(), *pattern(ALIGN, 1));
    fs::remove_file(path("d/z")).await.unwrap();
    fs::sync_dir(path("d")).await.unwrap();
    assert!(fs::exists(path("d/a")).await.unwrap() && !fs::exists(path("d/z")).await.unwrap());
    assert_eq!(
        fs::remove_file(path("d/z")).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        fs::rename(path("d/z"), path("d/y"))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        fs::rename(path("d/a"), path("a")).await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        fs::read_dir(path("none")).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(fs::read_dir(path("d")).await.unwrap(), ["a"]);
}

async fn a_removed_file_stays_readable_while_open() {
    let file = create("a").await;
    file.write_at(0, pattern(ALIGN, 1)).await.unwrap();
    fs::remove_file(path("a")).await.unwrap();
    assert_eq!(*file.read_at(0, ALIGN).await.unwrap(), *pattern(ALIGN, 1));
    assert!(!fs::exists(path("a")).await.unwrap());
    let other = create("a").await;
    assert_eq!(other.len().await.unwrap(), 0);
}

async fn a_mapped_file_is_read_in_parts() {
    let file = create("a").await;
    let len = 512 * ALIGN;
    for (at, seed) in [(0, 1), (1500 * ALIGN, 2)] {
        file.write_at(at as u64, pattern(len, seed)).await.unwrap();
    }
    file.set_len((1500 * ALIGN + len - 5) as u64).await.unwrap();
    file.datasync().await.unwrap();
    let mapped = MappedFile::open(path("a")).await.unwrap();
    let (at, part) = (3 * ALIGN, 2 * ALIGN);
    let first = mapped.read_at(at as u64, part).await.unwrap();
    assert_eq!(first, pattern(len, 1)[at..at + part]);
    // Across the windows that come into memory at once, and to the end.
    let second = mapped.read_at(1024 * ALIGN as u64, 2 * len).await.unwrap();
    assert!(second[..476 * ALIGN].iter().all(|&byte| byte == 0));
    assert_eq!(second[476 * ALIGN..], pattern(len, 2)[..len - 5]);
    let beyond = mapped.read_at(4000 * ALIGN as u64, ALIGN).await.unwrap();
    assert!(beyond.is_empty());
    let unaligned = mapped.read_at(7, ALIGN).await.unwrap_err();
    assert_eq!(unaligned.kind(), ErrorKind::InvalidInput);
    // What was read outlives the map.
    drop(mapped);
    assert_eq!(first, pattern(len, 1)[at..at + part]);
    create("b").await;
    let empty = MappedFile::open(path("b")).await.unwrap();
    assert!(empty.read_at(0, ALIGN).await.unwrap().is_empty());
    assert!(MappedFile::open(path("c")).await.is_err());
}

async fn small_files_are_read_whole() {
    let file = create("a").await;
    assert!(fs::read_small(path("a")).await.unwrap().is_empty());
    file.write_at(0, pattern(2 * ALIGN, 4)).await.unwrap();
    file.set_len(ALIGN as u64 + 5).await.unwrap();
    assert_eq!(
        fs::read_small(path("a")).await.unwrap(),
        pattern(2 * ALIGN, 4)[..ALIGN + 5]
    );
    assert_eq!(
        fs::read_small(path("b")).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

async fn directories_are_made_with_their_parents() {
    fs::create_dir_all(path("x/y/z")).await.unwrap();
    fs::create_dir_all(path("x/y")).await.unwrap();
    assert!(fs::exists(path("x/y/z")).await.unwrap());
    create("x/y/z/f").await;
    assert!(fs::create_dir_all(path("x/y/z/f/g")).await.is_err());
    assert_eq!(fs::read_dir(path("x/y")).await.unwrap(), ["z"]);
}

async fn one_holder_locks_a_directory() {
    fs::create_dir_all(path("d")).await.unwrap();
    let lock = fs::lock(path("d")).await.unwrap();
    assert_eq!(
        fs::lock(path("d")).await.map(drop).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    let directory = path("d");
    let refused = submit_to(CoreId(1), Queue::Foreground, move || async move {
        fs::lock(&directory)
            .await
            .map(drop)
            .map_err(|error| error.kind())
    });
    assert_eq!(refused.await, Err(ErrorKind::WouldBlock));
    drop(lock);
    drop(fs::lock(path("d")).await.unwrap());
}

async fn there_is_free_space() {
    assert!(fs::space(path("")).await.unwrap().free_bytes > ALIGN as u64);
}

async fn another_core_sees_the_same_file() {
    let file = create("a").await;
    file.write_at(0, pattern(ALIGN, 6)).await.unwrap();
    let name = path("a");
    let content = submit_to(CoreId(1), Queue::Background, move || async move {
        let file = File::open(&name, OpenOptions::write()).await.unwrap();
        file.write_at(ALIGN as u64, pattern(ALIGN, 7))
            .await
            .unwrap();
        // A buffer may cross cores.
        file.read_at(0, 2 * ALIGN).await.unwrap()
    })
    .await;
    assert_eq!(content[..ALIGN], *pattern(ALIGN, 6));
    assert_eq!(
        *file.read_at(ALIGN as u64, ALIGN).await.unwrap(),
        *pattern(ALIGN, 7)
    );
}
