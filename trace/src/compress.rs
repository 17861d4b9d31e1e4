//! Reads compressed input, recognised by its first bytes.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// Decompresses `input` as it is read: recognises zstd and gzip (also with several frames) by their first bytes, and passes everything
/// else on unchanged. Memory is bounded by the window of the compressor, at most 100 MiB.
///
/// Data that end too early yield their whole contents, then an error of the kind [`io::ErrorKind::UnexpectedEof`].
///
/// # Errors
/// If `input` cannot be read, or its compressed form is damaged from the start.
pub fn decompressed<'a>(input: impl Read + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let mut input = BufReader::new(input);
    // A pipe may return fewer than four bytes at first.
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
        [0x28, 0xb5, 0x2f, 0xfd] => {
            Box::new(BufReader::new(Frames { state: Some(State::Between(whole)), cut: Rc::default() }))
        }
        [0x1f, 0x8b, ..] => Box::new(BufReader::new(Gzip(MultiGzDecoder::new(whole)))),
        _ => Box::new(whole),
    })
}

/// Decodes consecutive zstd frames. The underlying decoder handles only one, and does not compare checksums.
struct Frames<R: BufRead> {
    /// `None` after an error.
    state: Option<State<R>>,
    /// Whether the input ended inside a frame.
    cut: Rc<Cell<bool>>,
}

/// Decodes gzip, with errors in plain words.
struct Gzip<R>(MultiGzDecoder<R>);

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => cut_off(),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => damaged("gzip"),
            _ => error,
        })
    }
}

enum State<R: BufRead> {
    Between(R),
    Inside(Box<StreamingDecoder<WholeBlocks<R>, FrameDecoder>>),
}

fn damaged(form: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the {form} data are damaged"))
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the compressed data end too early")
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
                    let cut = self.cut.clone();
                    let wrong = |_| if self.cut.get() { cut_off() } else { damaged("zstd") };
                    let frame = StreamingDecoder::new(WholeBlocks::new(input, cut)).map_err(wrong)?;
                    self.state = Some(State::Inside(Box::new(frame)));
                }
                Some(State::Inside(mut frame)) => match frame.read(buffer).map_err(|_| damaged("zstd"))? {
                    0 if self.cut.get() => return Err(cut_off()),
                    0 => {
                        let said = frame.decoder.get_checksum_from_data();
                        if said.is_some() && said != frame.decoder.get_calculated_checksum() {
                            return Err(damaged("zstd"));
                        }
                        self.state = Some(State::Between(frame.into_inner().input));
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

/// Passes a zstd frame on block by block (RFC 8878, 3.1.1). If the input ends inside a block, the frame ends before that block, so that a
/// decoder returns everything it holds instead of an error.
struct WholeBlocks<R: BufRead> {
    input: R,
    /// The bytes to pass on next, from `at` on.
    ready: Vec<u8>,
    at: usize,
    next: Next,
    /// Whether the input ended too early.
    cut: Rc<Cell<bool>>,
}

enum Next {
    Header,
    /// A block, with the number of bytes of the checksum at the end of the frame.
    Block(usize),
    End,
}

/// A last block without content.
const LAST: [u8; 3] = [1, 0, 0];

impl<R: BufRead> WholeBlocks<R> {
    fn new(input: R, cut: Rc<Cell<bool>>) -> Self {
        Self { input, ready: Vec::new(), at: 0, next: Next::Header, cut }
    }

    /// Adds `count` bytes of the input to `ready`; returns false if there are fewer.
    fn take(&mut self, count: usize) -> io::Result<bool> {
        let read = (&mut self.input).take(count as u64).read_to_end(&mut self.ready)?;
        if read < count {
            self.cut.set(true);
        }
        Ok(read == count)
    }

    fn header(&mut self) -> io::Result<()> {
        self.next = Next::End;
        if !self.take(5)? {
            return Ok(());
        }
        let descriptor = self.ready[4];
        let single = descriptor & 0x20 != 0;
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let size = match descriptor >> 6 {
            0 => usize::from(single),
            more => 1 << more,
        };
        if self.take(usize::from(!single) + dictionary + size)? {
            self.next = Next::Block(if descriptor & 4 != 0 { 4 } else { 0 });
        }
        Ok(())
    }

    fn block(&mut self, checksum: usize) -> io::Result<()> {
        let mut whole = self.take(3)?;
        if whole {
            let header = self.ready.iter().rev().fold(0_usize, |word, &byte| word << 8 | usize::from(byte));
            // A block of one repeated byte gives the number of repetitions as its size.
            let content = if header >> 1 & 3 == 1 { 1 } else { header >> 3 };
            let last = header & 1 != 0;
            whole = self.take(content + if last { checksum } else { 0 })?;
            if last {
                self.next = Next::End;
            }
        }
        if !whole {
            self.ready.clear();
            self.ready.extend(LAST);
            self.ready.extend(vec![0; checksum]);
            self.next = Next::End;
        }
        Ok(())
    }
}

impl<R: BufRead> Read for WholeBlocks<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.ready.len() {
            self.ready.clear();
            self.at = 0;
            match self.next {
                Next::Header => self.header()?,
                Next::Block(checksum) => self.block(checksum)?,
                Next::End => return Ok(0),
            }
        }
        let count = buffer.len().min(self.ready.len() - self.at);
        buffer[..count].copy_from_slice(&self.ready[self.at..][..count]);
        self.at += count;
        Ok(count)
    }
}
