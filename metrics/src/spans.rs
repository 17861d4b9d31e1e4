//! [`SpanTags`]: tags allocations with the spans of `tracing`.

use allotment::observe::swap_tag;
use tracing::Subscriber;
use tracing::span::Id;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Tags a thread's allocations with the name of its innermost span.
///
/// Add the layer to the `Registry` of `tracing-subscriber`; a filter on it ([`Layer::with_filter`]) chooses the spans. Entering or
/// leaving a span costs one write to a thread-local variable. Outside all spans there is no tag; [`allotment::observe::with_tag`] inside
/// a span applies until its closure returns. [`Tags`](allotment::observe::Tags), budgets and traces then name spans.
///
/// ```
/// use allotment::observe::tag;
/// use allotment_metrics::SpanTags;
/// use tracing_subscriber::layer::SubscriberExt;
///
/// let subscriber = tracing_subscriber::registry().with(SpanTags);
/// tracing::subscriber::with_default(subscriber, || {
///     let _request = tracing::info_span!("request").entered();
///     assert_eq!(tag(), Some("request"));
/// });
/// assert_eq!(tag(), None);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SpanTags;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanTags {
    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            swap_tag(Some(span.metadata().name()));
        }
    }

    fn on_exit(&self, _id: &Id, context: Context<'_, S>) {
        swap_tag(context.lookup_current().map(|span| span.metadata().name()));
    }
}
