//! OP_COMPRESSED: messages wrapped by one of the compressors a client may offer.

use std::fmt;

use bytes::Bytes;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::header::{Header, OpCode};
use crate::limits::{HEADER_BYTES, MAX_ACCEPTED_BYTES};

/// A compressor and its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    Noop = 0,
    Snappy = 1,
    Zlib = 2,
    Zstd = 3,
}

impl Compressor {
    /// Those a server offers in hello, in the order of MongoDB's default.
    pub const OFFERED: [Compressor; 3] = [Compressor::Snappy, Compressor::Zstd, Compressor::Zlib];

    pub fn name(self) -> &'static str {
        match self {
            Compressor::Noop => "noop",
            Compressor::Snappy => "snappy",
            Compressor::Zlib => "zlib",
            Compressor::Zstd => "zstd",
        }
    }

    pub fn from_name(name: &str) -> Option<Compressor> {
        Compressor::OFFERED
            .into_iter()
            .find(|compressor| compressor.name() == name)
    }

    fn from_id(id: u8) -> Option<Compressor> {
        match id {
            0 => Some(Compressor::Noop),
            1 => Some(Compressor::Snappy),
            2 => Some(Compressor::Zlib),
            3 => Some(Compressor::Zstd),
            _ => None,
        }
    }
}

/// Why an OP_COMPRESSED message cannot be unwrapped. The connection cannot be trusted after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompressionError {
    Truncated,
    UnknownCompressor(u8),
    /// The size it claims to have uncompressed is negative or too large.
    BadSize(i32),
    /// It holds another compressed message.
    Nested,
    /// What it holds is not of the claimed size, or no output of the compressor.
    Corrupt(Compressor),
}

impl fmt::Display for CompressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompressionError::Truncated => write!(f, "Invalid compressed message header"),
            CompressionError::UnknownCompressor(id) => {
                write!(
                    f,
                    "Compression algorithm specified in message is not available: {id}"
                )
            }
            CompressionError::BadSize(size) => write!(
                f,
                "Decompressed message would be larger than maximum message size: {size}"
            ),
            CompressionError::Nested => write!(f, "Compressed message holds a compressed message"),
            CompressionError::Corrupt(compressor) => {
                write!(f, "Corrupt {} compressed message", compressor.name())
            }
        }
    }
}

impl std::error::Error for CompressionError {}

/// Layout behind the header: `original opcode i32 | uncompressed size i32 | compressor u8 | bytes`.
/// The size counts neither header.
const PREFIX_BYTES: usize = HEADER_BYTES + 9;
/// A reply below this size gains nothing from compression.
const MIN_COMPRESSED_BYTES: usize = 128;
const ZSTD_LEVEL: i32 = 3;

/// The working memory of the compressors: one for each core, because making it costs more than
/// using it.
#[derive(Default)]
pub struct CompressionState {
    snappy: Option<snap::raw::Encoder>,
    zlib: Option<(Compress, Decompress)>,
    zstd_out: Option<zstd::bulk::Compressor<'static>>,
    zstd_in: Option<zstd::bulk::Decompressor<'static>>,
}

impl CompressionState {
    /// The size that an OP_COMPRESSED message claims to have uncompressed. Nothing is checked.
    pub fn claimed_bytes(bytes: &[u8]) -> Option<usize> {
        let claimed = bytes.get(HEADER_BYTES + 4..)?.first_chunk::<4>()?;
        usize::try_from(i32::from_le_bytes(*claimed)).ok()
    }

    /// The message inside an OP_COMPRESSED message, with the header it would have had, and the
    /// compressor.
    pub fn unwrap(&mut self, bytes: &Bytes) -> Result<(Bytes, Compressor), CompressionError> {
        let header = Header::read(bytes).ok_or(CompressionError::Truncated)?;
        if bytes.len() < PREFIX_BYTES {
            return Err(CompressionError::Truncated);
        }
        let word = |at: usize| {
            i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let opcode = OpCode(word(HEADER_BYTES));
        let claimed = word(HEADER_BYTES + 4);
        let compressor = Compressor::from_id(bytes[HEADER_BYTES + 8])
            .ok_or(CompressionError::UnknownCompressor(bytes[HEADER_BYTES + 8]))?;
        if opcode == OpCode::COMPRESSED {
            return Err(CompressionError::Nested);
        }
        // Checked before anything is allocated or inflated.
        let size = usize::try_from(claimed).map_err(|_| CompressionError::BadSize(claimed))?;
        if size > MAX_ACCEPTED_BYTES - HEADER_BYTES {
            return Err(CompressionError::BadSize(claimed));
        }
        let packed = &bytes[PREFIX_BYTES..];
        let mut message = Vec::new();
        let corrupt = CompressionError::Corrupt(compressor);
        if size > packed.len().saturating_mul(compressor.greatest_ratio()) {
            return Err(corrupt);
        }
        message.reserve_exact(HEADER_BYTES + size);
        let length = (HEADER_BYTES + size) as u32;
        message.extend_from_slice(
            &Header {
                length,
                opcode,
                ..header
            }
            .to_bytes(),
        );
        let produced = match compressor {
            Compressor::Noop => {
                message.extend_from_slice(packed);
                packed.len()
            }
            Compressor::Snappy => {
                if snap::raw::decompress_len(packed).ok() != Some(size) {
                    return Err(corrupt);
                }
                message.resize(HEADER_BYTES + size, 0);
                snap::raw::Decoder::new()
                    .decompress(packed, &mut message[HEADER_BYTES..])
                    .map_err(|_| corrupt.clone())?
            }
            Compressor::Zlib => {
                message.resize(HEADER_BYTES + size, 0);
                let (_, inflate) = self.zlib();
                inflate.reset(true);
                let status = inflate
                    .decompress(
                        packed,
                        &mut message[HEADER_BYTES..],
                        FlushDecompress::Finish,
                    )
                    .map_err(|_| corrupt.clone())?;
                if status != Status::StreamEnd {
                    return Err(corrupt);
                }
                inflate.total_out() as usize
            }
            Compressor::Zstd => {
                message.resize(HEADER_BYTES + size, 0);
                let decompressor = match &mut self.zstd_in {
                    Some(ready) => ready,
                    empty => {
                        empty.insert(zstd::bulk::Decompressor::new().map_err(|_| corrupt.clone())?)
                    }
                };
                decompressor
                    .decompress_to_buffer(packed, &mut message[HEADER_BYTES..])
                    .map_err(|_| corrupt.clone())?
            }
        };
        if produced != size || message.len() != HEADER_BYTES + size {
            return Err(corrupt);
        }
        Ok((Bytes::from(message), compressor))
    }

    /// Wraps a message, or gives it back as it is when that would not make it smaller.
    pub fn wrap(&mut self, message: Bytes, compressor: Compressor) -> Bytes {
        let Some(header) = Header::read(&message) else {
            return message;
        };
        if message.len() < MIN_COMPRESSED_BYTES {
            return message;
        }
        let plain = &message[HEADER_BYTES..];
        // Room for one byte less than it takes uncompressed: what does not fit is sent as it is.
        let room = message.len() - PREFIX_BYTES - 1;
        let mut wrapped = vec![0; PREFIX_BYTES];
        let packed_len = match compressor {
            Compressor::Noop => None,
            Compressor::Snappy => {
                wrapped.resize(PREFIX_BYTES + snap::raw::max_compress_len(plain.len()), 0);
                self.snappy
                    .get_or_insert_with(snap::raw::Encoder::new)
                    .compress(plain, &mut wrapped[PREFIX_BYTES..])
                    .ok()
                    .filter(|n| *n <= room)
            }
            Compressor::Zlib => {
                wrapped.resize(PREFIX_BYTES + room, 0);
                let (deflate, _) = self.zlib();
                deflate.reset();
                match deflate.compress(plain, &mut wrapped[PREFIX_BYTES..], FlushCompress::Finish) {
                    Ok(Status::StreamEnd) => Some(deflate.total_out() as usize),
                    _ => None,
                }
            }
            Compressor::Zstd => {
                wrapped.resize(PREFIX_BYTES + room, 0);
                if self.zstd_out.is_none() {
                    self.zstd_out = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
                }
                self.zstd_out.as_mut().and_then(|ready| {
                    ready
                        .compress_to_buffer(plain, &mut wrapped[PREFIX_BYTES..])
                        .ok()
                })
            }
        };
        let Some(packed_len) = packed_len else {
            return message;
        };
        wrapped.truncate(PREFIX_BYTES + packed_len);
        let length = wrapped.len() as u32;
        let outer = Header {
            length,
            opcode: OpCode::COMPRESSED,
            ..header
        };
        wrapped[..HEADER_BYTES].copy_from_slice(&outer.to_bytes());
        wrapped[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&header.opcode.0.to_le_bytes());
        wrapped[HEADER_BYTES + 4..HEADER_BYTES + 8]
            .copy_from_slice(&(plain.len() as u32).to_le_bytes());
        wrapped[HEADER_BYTES + 8] = compressor as u8;
        Bytes::from(wrapped)
    }

    fn zlib(&mut self) -> &mut (Compress, Decompress) {
        self.zlib.get_or_insert_with(|| {
            (
                Compress::new(Compression::default(), true),
                Decompress::new(true),
            )
        })
    }
}

impl Compressor {
    /// No input grows by more than this, so a claimed size beyond it is a lie that costs no memory.
    /// For zstd, whose frames may repeat one byte at almost no cost, only the message limit holds.
    fn greatest_ratio(self) -> usize {
        match self {
            Compressor::Noop => 1,
            Compressor::Snappy => 64,
            Compressor::Zlib => 1100,
            Compressor::Zstd => usize::MAX,
        }
    }
}

#[cfg(test)]
mod tests;
