//! Change streams: what an insert costs when a thousand streams look at it and none wants it.

use crate::engine::cpu_time;
use crate::message::message;
use crate::report::{Report, Target};
use anyhow::Result;
use bytes::Bytes;
use rockdove_documents::filter::{Filter, FilterOptions};
use rockdove_documents::{Doc, doc};
use rockdove_engine::{
    Ack, Engine, EventPipeline, Namespace, Options, Scope, StartAt, Statement, View, Write,
};
use std::sync::Arc;
use std::time::Duration;

/// A pipeline of one `$match`.
struct Match(Filter);

impl EventPipeline for Match {
    fn apply(&self, event: Doc) -> rockdove_documents::Result<Option<Doc>> {
        Ok(self.0.matches(event.raw())?.then_some(event))
    }
}

/// The condition of a node's main stream in Morphium's Standard layout.
fn condition(node: usize) -> Doc {
    let (me, topic) = (format!("node-{node}"), format!("topic-{node}"));
    doc! {
        "operationType": "insert",
        "fullDocument.sender": { "$ne": &me },
        "$or": [
            { "fullDocument.recipients": null, "fullDocument.topic": { "$in": [&topic, "morphium.status_info"] } },
            { "fullDocument.recipients": &me }
        ]
    }
}

/// Measures inserts beside `count` streams of which none matches.
pub async fn none_matching(count: usize, inserts: u64) -> Result<Report> {
    let without = cost(0, inserts).await?;
    let with = cost(count, inserts).await?;
    let each = (with - without) / (inserts as f64 * count as f64) * 1e9;
    let mut report = Report::default();
    let name = format!("streams: processor time per insert and stream ({count} streams)");
    report.add(name, each, "ns", Target::AtMost(300.0));
    Ok(report)
}

/// Processor seconds for the inserts, with so many streams open.
async fn cost(streams: usize, inserts: u64) -> Result<f64> {
    let engine = tokio::task::spawn_blocking(|| Engine::open(Options::memory())).await??;
    let ns = Namespace::new("bench", "msg")?;
    let mut open = Vec::new();
    for node in 0..streams {
        let condition = condition(node);
        let stages = Bytes::copy_from_slice(condition.bytes());
        let pipeline = Arc::new(Match(Filter::parse(condition.raw(), &FilterOptions::default())?));
        open.push(engine.watch(
            Scope::Collection(ns.clone()),
            View::default(),
            stages,
            pipeline,
            StartAt::Now,
        )?);
    }
    let before = cpu_time()?;
    for n in 0..inserts {
        let statements = vec![Statement::Insert { ns: ns.clone(), doc: message(n) }];
        let write =
            Write { statements, ordered: true, retry: None, ack: Ack::Written, bypass_validation: false };
        engine.write(write).await?;
    }
    // A stream is up to date when its token says so: only then all have looked at everything.
    if let Some(last) = open.last_mut() {
        let upto = engine.operation_time();
        while rockdove_engine::Token::parse(rockdove_documents::Value::Document(
            last.next(1, 1 << 20, Duration::from_millis(10)).await?.resume_token.raw(),
        ))?
        .at < upto
        {}
    }
    let used = cpu_time()?.saturating_sub(before).as_secs_f64();
    drop(open);
    engine.close().await.map_err(anyhow::Error::msg)?;
    Ok(used)
}
