//! Allocations are tagged with the spans that they happen in.

#![cfg(feature = "tracing")]

use std::alloc::Layout;
use std::thread;

use allotment::lock::Futex;
use allotment::observe::{Tags, tag, with_tag};
use allotment::{Heap, Memory, Observed, Tlsf, heap};
use allotment_metrics::SpanTags;
use tracing::{Level, info_span, trace_span};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;

static HEAP: Observed<Heap<Tlsf, Futex>, Tags<4, 16>> = Observed::new(heap!(4096), Tags::new());

/// Spans nest, a tag inside of one ends with its closure, other threads have their own, and a filter chooses the spans.
#[test]
fn spans_tag_what_a_thread_allocates() {
    let layer = SpanTags.with_filter(LevelFilter::from_level(Level::INFO));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
    assert_eq!(tag(), None);
    let request = info_span!("request");
    request.in_scope(|| {
        HEAP.allocate(Layout::new::<[u8; 100]>()).unwrap();
        assert_eq!(with_tag("tls", tag), Some("tls"));
        info_span!("parse").in_scope(|| {
            HEAP.allocate(Layout::new::<[u8; 30]>()).unwrap();
            trace_span!("detail").in_scope(|| assert_eq!(tag(), Some("parse")));
            assert_eq!(tag(), Some("parse"));
            assert_eq!(thread::spawn(tag).join().unwrap(), None);
        });
        HEAP.allocate(Layout::new::<[u8; 7]>()).unwrap();
    });
    assert_eq!(tag(), None);
    // A span that is left out of order leaves the tag of the one that is still entered.
    let outer = info_span!("outer").entered();
    let inner = info_span!("inner").entered();
    drop(outer);
    assert_eq!(tag(), Some("inner"));
    drop(inner);
    let live = |tag| HEAP.observers(|tags| tags.of(tag).live_bytes);
    assert_eq!((live(Some("request")), live(Some("parse")), live(None)), (107, 30, 0));
}
