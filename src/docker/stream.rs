//! Answers that go on for minutes, one JSON value a line.
//!
//! `bollard` reads BuildKit's answers only with a session of its own, and writes credentials with an alphabet that the engine reads
//! as none.

use std::{future::poll_fn, pin::Pin};

use bollard::{BollardRequest, errors::Error};
use bytes::BytesMut;
use hyper::body::{Body as _, Incoming};
use serde_json::Value;

use super::Engine;

/// How much of an answer that is an error is read.
const WORDS: usize = 64 << 10;
/// No line is longer: BuildKit's messages have at most 16 MiB, and are written in base 64.
const LONGEST: usize = 32 << 20;

/// The values of an answer, as they come.
pub struct Lines {
    body: Incoming,
    /// The beginning of the next line.
    rest: BytesMut,
}

impl Engine {
    /// Sends a request that is answered by a stream. A status other than success becomes an error with the engine's own words.
    pub async fn stream(&self, request: BollardRequest) -> Result<Lines, Error> {
        let answer = self.transport.request(request).await?;
        let status = answer.status();
        let mut lines = Lines { body: answer.into_body(), rest: BytesMut::new() };
        if status.is_success() {
            return Ok(lines);
        }
        while lines.rest.len() < WORDS && lines.more().await? {}
        let said: Value = serde_json::from_slice(&lines.rest).unwrap_or_default();
        let message = said["message"].as_str().map_or_else(|| String::from_utf8_lossy(&lines.rest).into_owned(), str::to_owned);
        Err(Error::DockerResponseServerError { status_code: status.as_u16(), message })
    }
}

impl Lines {
    /// The next value; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Value>, Error> {
        loop {
            let end = self.rest.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
            if end.is_none() && self.rest.len() > LONGEST {
                let error = format!("a line of the engine's answer has more than {} MiB", LONGEST >> 20);
                return Err(Error::DockerStreamError { error });
            }
            if end.is_none() && self.more().await? {
                continue;
            }
            let line = self.rest.split_to(end.unwrap_or(self.rest.len()));
            if !line.trim_ascii().is_empty() {
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if end.is_none() {
                return Ok(None);
            }
        }
    }

    /// Reads the rest. A failure in an answer that began well becomes an error.
    pub async fn finish(mut self) -> Result<(), Error> {
        while let Some(said) = self.next().await? {
            if let Some(why) = said["errorDetail"]["message"].as_str() {
                return Err(Error::DockerStreamError { error: why.to_owned() });
            }
        }
        Ok(())
    }

    /// Waits for more of the answer; `false` at its end.
    async fn more(&mut self) -> Result<bool, Error> {
        match poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await {
            Some(frame) => {
                self.rest.extend_from_slice(frame?.data_ref().map_or(&[][..], |data| data));
                Ok(true)
            }
            None => Ok(false),
        }
    }
}
