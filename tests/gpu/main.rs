//! The feature `gpu` through cudarc's dynamic loading: with the stand-in driver (`stand-in`), which is built when
//! the first test needs it, or with the system's driver if `ALLOTMENT_CUDA_DRIVER=system`. Tests that control the
//! driver do nothing on a real one.

mod available;
mod batch;
mod book;
mod buffers;
mod capture;
mod copies;
mod exchange;
mod failures;
mod integrated;
mod manager;
mod mapped;
mod owned;
mod pools;
mod room;
mod sequences;
mod share;
mod shown;
mod sources;
mod staging;
mod streams;
mod support;
