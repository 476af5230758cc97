// SPDX-License-Identifier: Apache-2.0
//! Metrics endpoint: answers `GET /metrics` over HTTP.
//!
//! Anybody who can reach the port can read the counters, which name no file and no user. The
//! endpoint answers few requests at once, and does not wait long for the sender of one.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use esker_base::{Error, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use super::served_namespace::ServedNamespace;

/// Path of the metrics.
const METRICS_PATH: &str = "/metrics";
/// Connections served at once; others wait.
const CONNECTIONS_MAX: usize = 8;
/// Time for the head of a request: others wait for those who send none.
const HEAD_PATIENCE: Duration = Duration::from_secs(1);
/// Time for one connection.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a request's head, at most.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Answers requests for metrics at `listener` on `runtime`.
///
/// # Errors
/// Those of the kernel.
pub(super) fn answer_metrics(
    runtime: &Runtime,
    listener: TcpListener,
    served: Arc<ServedNamespace>,
) -> Result<()> {
    let failed = |error| Error::io(error, "listen for requests for metrics");
    listener.set_nonblocking(true).map_err(failed)?;
    let _context = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    runtime.spawn(async move {
        loop {
            let permit = connections.clone().acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let served = served.clone();
            tokio::spawn(async move {
                let answer = service_fn(move |request| {
                    let served = served.clone();
                    async move { Ok::<_, Infallible>(answer(served, &request).await) }
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_PATIENCE)
                    .max_buf_size(HEAD_BYTES_MAX)
                    .keep_alive(false)
                    .serve_connection(TokioIo::new(stream), answer);
                // A client that goes away, or sends something else, gets no answer.
                let _ = tokio::time::timeout(CONNECTION_PATIENCE, connection).await;
                drop(permit);
            });
        }
    });
    Ok(())
}

async fn answer(
    served: Arc<ServedNamespace>,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, METRICS_PATH) => {
            // This may block on locks that are held across store requests.
            let read = tokio::task::spawn_blocking(move || served.metrics_text()).await;
            match read {
                Ok(text) => (StatusCode::OK, prometheus::TEXT_FORMAT, text),
                // The server ends.
                Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", String::new()),
            }
        }
        (&Method::GET, _) => {
            let text = format!("metrics are at {METRICS_PATH}\n");
            (StatusCode::NOT_FOUND, "text/plain", text)
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET is answered\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = kind.parse().expect("a valid header");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
