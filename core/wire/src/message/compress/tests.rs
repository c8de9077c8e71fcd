//! Round trips, and messages that lie about what they hold.

use super::*;

const ALL: [Compressor; 3] = Compressor::OFFERED;

fn message(body: &[u8]) -> Bytes {
    let header = Header {
        length: (HEADER_BYTES + body.len()) as u32,
        request_id: 5,
        response_to: 6,
        opcode: OpCode::MSG,
    };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(body);
    Bytes::from(bytes)
}

fn wrapped_by_hand(claimed: i32, compressor: u8, opcode: OpCode, packed: &[u8]) -> Bytes {
    let mut body = opcode.0.to_le_bytes().to_vec();
    body.extend_from_slice(&claimed.to_le_bytes());
    body.push(compressor);
    body.extend_from_slice(packed);
    let mut bytes = message(&body).to_vec();
    bytes[12..16].copy_from_slice(&OpCode::COMPRESSED.0.to_le_bytes());
    Bytes::from(bytes)
}

#[test]
fn round_trips() {
    let mut state = CompressionState::default();
    let noise: Vec<u8> = (0..5000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let bodies: [Vec<u8>; 4] = [vec![], b"abc".to_vec(), b"abcdefgh".repeat(1000), noise];
    for compressor in ALL {
        for body in &bodies {
            let plain = message(body);
            let wrapped = state.wrap(plain.clone(), compressor);
            assert!(wrapped.len() <= plain.len());
            let header = Header::read(&wrapped).unwrap();
            assert_eq!(header.length as usize, wrapped.len());
            assert_eq!((header.request_id, header.response_to), (5, 6));
            if header.opcode == OpCode::COMPRESSED {
                assert_eq!(state.unwrap(&wrapped), Ok((plain, compressor)));
            } else {
                assert_eq!(wrapped, plain);
            }
        }
        let repetitive = state.wrap(message(&bodies[2]), compressor);
        assert!(
            repetitive.len() < 1000,
            "{} did not compress",
            compressor.name()
        );
    }
    let noop = wrapped_by_hand(3, 0, OpCode::MSG, b"abc");
    assert_eq!(state.unwrap(&noop), Ok((message(b"abc"), Compressor::Noop)));
}

#[test]
fn lies_are_found_before_memory_is_taken() {
    let mut state = CompressionState::default();
    let mut check = |bytes: Bytes, expected: CompressionError| {
        assert_eq!(state.unwrap(&bytes), Err(expected), "{bytes:?}");
    };
    check(
        wrapped_by_hand(-1, 1, OpCode::MSG, b"x"),
        CompressionError::BadSize(-1),
    );
    check(
        wrapped_by_hand(48_065_536, 3, OpCode::MSG, b"x"),
        CompressionError::BadSize(48_065_536),
    );
    check(
        wrapped_by_hand(i32::MAX, 2, OpCode::MSG, b"x"),
        CompressionError::BadSize(i32::MAX),
    );
    check(
        wrapped_by_hand(4, 9, OpCode::MSG, b"x"),
        CompressionError::UnknownCompressor(9),
    );
    check(
        wrapped_by_hand(4, 1, OpCode::COMPRESSED, b"x"),
        CompressionError::Nested,
    );
    check(
        wrapped_by_hand(4, 0, OpCode::MSG, b"xyz"),
        CompressionError::Corrupt(Compressor::Noop),
    );
    // Claims of 40 MB for a few bytes.
    check(
        wrapped_by_hand(40_000_000, 1, OpCode::MSG, b"xyz"),
        CompressionError::Corrupt(Compressor::Snappy),
    );
    check(
        wrapped_by_hand(40_000_000, 2, OpCode::MSG, b"xyz"),
        CompressionError::Corrupt(Compressor::Zlib),
    );
    check(message(b"1234567"), CompressionError::Truncated);
}

#[test]
fn more_or_less_than_claimed_is_refused() {
    let mut state = CompressionState::default();
    let body = b"abcdefgh".repeat(1000);
    for compressor in ALL {
        let wrapped = state.wrap(message(&body), compressor);
        for claimed in [0, body.len() as i32 - 1, body.len() as i32 + 1] {
            let mut lying = wrapped.to_vec();
            lying[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&claimed.to_le_bytes());
            let outcome = state.unwrap(&Bytes::from(lying));
            assert_eq!(
                outcome,
                Err(CompressionError::Corrupt(compressor)),
                "{claimed}"
            );
        }
        // A good message is still understood afterwards.
        assert!(state.unwrap(&wrapped).is_ok());
    }
}

#[test]
fn flipped_and_cut_bytes_never_panic() {
    let mut state = CompressionState::default();
    let body = b"the quick brown fox jumps over the lazy dog. ".repeat(20);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for compressor in ALL {
        let wrapped = state.wrap(message(&body), compressor);
        for _ in 0..2000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let mut mutant = wrapped.to_vec();
            let at = random as usize % mutant.len();
            mutant[at] ^= (random >> 32) as u8;
            if random.is_multiple_of(3) {
                mutant.truncate((random >> 40) as usize % (mutant.len() + 1));
            }
            if let Ok((unwrapped, _)) = state.unwrap(&Bytes::from(mutant)) {
                assert!(unwrapped.len() <= MAX_ACCEPTED_BYTES);
            }
        }
    }
}
