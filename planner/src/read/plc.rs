//! idealloc's binary form: records of eight 64-bit big-endian words.

use super::ReadError;
use crate::model::{Buffer, Instance};

/// Bytes of a record.
pub const PLC_RECORD: usize = 64;

/// Reads records of id, birth, death (exclusive), size, two words that are not used, alignment (0: none) and
/// requested size (not used).
///
/// # Errors
/// See [`ReadError`]; records are counted from 0.
pub fn read_plc(bytes: &[u8]) -> Result<Instance, ReadError> {
    let records = bytes.chunks_exact(PLC_RECORD);
    if !records.remainder().is_empty() {
        let what = format!("{} bytes of {PLC_RECORD}", records.remainder().len());
        return Err(ReadError::Record { record: bytes.len() / PLC_RECORD, what });
    }
    let buffers = records.enumerate().map(|(record, bytes)| {
        let mut words = [0_u64; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        }
        let [id, birth, death, size, _, _, align, _] = words;
        let time = |time: u64| {
            let what = || format!("the time {time} is above 2^63");
            i64::try_from(time).map_err(|_| ReadError::Record { record, what: what() })
        };
        let buffer = Buffer::new(id.to_string(), size, time(birth)?, time(death)?);
        Ok(Buffer { align: align.max(1), ..buffer })
    });
    Ok(Instance::new(buffers.collect::<Result<_, ReadError>>()?)?)
}
