//! What is answered on the TCP address for metrics: `GET /metrics`, and nothing else. Nobody is known there, and nothing
//! that is asked there changes anything.

use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use super::answers::Answers;
use super::clients::Rank;
use super::refusal::Refusal;
use super::routes::METRICS;
use super::scraper::Scraper;
use crate::metrics;

pub(super) struct Scraping {
    pub(super) scraper: Arc<Scraper>,
    pub(super) answers: Arc<Answers>,
}

impl Scraping {
    pub(super) async fn reply(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path() != METRICS {
            return refusal(StatusCode::NOT_FOUND, "there is only /metrics here\n");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, "ask with GET\n");
            let allowed = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, allowed);
            return response;
        }
        let share = self.answers.share_of_metrics(Rank::Scrapes).await;
        match share.bytes(self.scraper.text().await) {
            Ok(body) => response(body, metrics::CONTENT_TYPE),
            Err(Refusal {
                status, sentence, ..
            }) => refusal(status, sentence + "\n"),
        }
    }
}

fn refusal(status: StatusCode, sentence: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = response(sentence.into(), "text/plain; charset=utf-8");
    *response.status_mut() = status;
    response
}

fn response(body: Bytes, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
