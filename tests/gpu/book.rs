//! The programs for a device in the book's chapter on GPUs, word for word, on the stand-in driver. The others are run by `docs/check`.

mod device;
mod file;

const LESSONS: [&str; 2] = [include_str!("book/device.rs"), include_str!("book/file.rs")];

/// Returns the chapter's pieces of code that begin with this line.
fn shown(fence: &str) -> Vec<&'static str> {
    let chapter = include_str!("../../docs/src/gpu.md");
    chapter.split(fence).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn they_are_the_books_programs() {
    let programs = shown("```rust,no_run\n");
    assert_eq!(programs.len(), LESSONS.len());
    for (program, lesson) in programs.into_iter().zip(LESSONS) {
        assert!(lesson.contains(program), "docs/src/gpu.md differs from tests/gpu/book:\n{program}");
    }
    for piece in shown("```rust,ignore\n") {
        assert!(include_str!("../beside/candle/main.rs").contains(piece), "{piece}");
    }
}
