//! Blocks of entries: for each the lengths of its key and of its value, and these themselves.

use bytes::Bytes;
use pinion_wire::Result;

use crate::error::error;

/// Bytes in front of an entry's key.
const LENGTHS: usize = 8;

/// Appends an entry whose value `write` appends.
pub(super) fn append(block: &mut Vec<u8>, key: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
    let start = block.len();
    block.extend_from_slice(&(key.len() as u32).to_le_bytes());
    block.extend_from_slice(&[0; 4]);
    block.extend_from_slice(key);
    let value = block.len();
    write(block);
    let bytes = (block.len() - value) as u32;
    block[start + 4..start + LENGTHS].copy_from_slice(&bytes.to_le_bytes());
}

/// The next entry of a block, which is taken off it; `None` at its end.
pub(super) fn next(block: &mut Bytes) -> Result<Option<(Bytes, Bytes)>> {
    if block.is_empty() {
        return Ok(None);
    }
    let length = |at: usize| -> Option<usize> {
        let bytes: [u8; 4] = block.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    let (Some(key), Some(value)) = (length(0), length(4)) else {
        return Err(unreadable());
    };
    if block.len() - LENGTHS < key + value {
        return Err(unreadable());
    }
    let mut entry = block.split_to(LENGTHS + key + value);
    let value = entry.split_off(LENGTHS + key);
    Ok(Some((entry.split_off(LENGTHS), value)))
}

/// The error of a block that does not hold what was written.
pub(super) fn unreadable() -> pinion_wire::Error {
    error(16817, "what was spilled to disk cannot be read back")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_as_they_were_written() {
        let mut block = Vec::new();
        append(&mut block, b"key", |out| out.extend_from_slice(b"value"));
        append(&mut block, b"", |_| {});
        append(&mut block, b"last", |out| out.extend_from_slice(&[0; 1000]));
        let mut bytes = Bytes::from(block.clone());
        let mut found = Vec::new();
        while let Some((key, value)) = next(&mut bytes).expect("sound") {
            found.push((key.to_vec(), value.len()));
        }
        assert_eq!(
            found,
            [
                (b"key".to_vec(), 5),
                (b"".to_vec(), 0),
                (b"last".to_vec(), 1000)
            ]
        );
        let mut cut = Bytes::from(block).slice(..15);
        assert_eq!(next(&mut cut).expect_err("cut").code.0, 16817);
    }
}
