//! What is counted, as a text for clients of the control socket and of the TCP address for metrics.

use std::sync::Arc;

use tokio::task::yield_now;

use super::facts::Facts;
use crate::metrics::Metrics;

pub(super) struct Scraper {
    facts: Arc<Facts>,
    metrics: Metrics,
}

impl Scraper {
    pub(super) fn new(facts: Arc<Facts>, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self { facts, metrics })
    }

    /// The text. Other clients have their turn in between.
    pub(super) async fn text(&self) -> String {
        let mut scrape = self.metrics.scrape();
        while scrape.go_on() {
            yield_now().await;
        }
        scrape.text(&self.facts.about())
    }
}
