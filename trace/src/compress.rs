//! Compressed input, recognised by its first bytes.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// `input` without its compression: zstd and gzip (also of several frames) are recognised by their first bytes, all
/// else is passed on as it is. Streams: memory is bounded by the window of the compressor, at most 100 MiB.
///
/// # Errors
/// If `input` cannot be read, or its compressed form is damaged from the start.
pub fn decompressed<'a>(input: impl Read + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let mut input = BufReader::new(input);
    // A pipe may hand over less than four bytes at first.
    let mut start = [0; 4];
    let mut have = 0;
    while have < start.len() {
        match input.read(&mut start[have..]) {
            Ok(0) => break,
            Ok(more) => have += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let whole = BufReader::new(io::Cursor::new(start).take(have as u64).chain(input));
    Ok(match &start[..have] {
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(BufReader::new(Frames { state: Some(State::Between(whole)) })),
        [0x1f, 0x8b, ..] => Box::new(BufReader::new(MultiGzDecoder::new(whole))),
        _ => Box::new(whole),
    })
}

/// zstd frames one after the other. The decoder beneath knows only one, and does not compare checksums.
struct Frames<R: BufRead> {
    /// `None` after an error.
    state: Option<State<R>>,
}

enum State<R: BufRead> {
    Between(R),
    Inside(Box<StreamingDecoder<R, FrameDecoder>>),
}

fn damaged(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the zstd data are damaged: {error}"))
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match self.state.take() {
                None => return Ok(0),
                Some(State::Between(mut input)) => {
                    if input.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    self.state =
                        Some(State::Inside(Box::new(StreamingDecoder::new(input).map_err(damaged)?)));
                }
                Some(State::Inside(mut frame)) => match frame.read(buffer).map_err(damaged)? {
                    0 => {
                        let said = frame.decoder.get_checksum_from_data();
                        if said.is_some() && said != frame.decoder.get_calculated_checksum() {
                            return Err(damaged("the checksum is wrong"));
                        }
                        self.state = Some(State::Between(frame.into_inner()));
                    }
                    count => {
                        self.state = Some(State::Inside(frame));
                        return Ok(count);
                    }
                },
            }
        }
    }
}
