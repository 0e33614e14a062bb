//! Change streams: what an insert costs when a thousand streams look at it and none wants it.

use crate::engine::cpu_time;
use crate::message::{message, write};
use crate::report::{Report, Target};
use anyhow::{Result, ensure};
use bytes::Bytes;
use rockdove_documents::filter::{Alternatives, Filter, FilterOptions};
use rockdove_documents::{Doc, Scanned, doc};
use rockdove_engine::{Engine, EventPipeline, Namespace, Options, Scope, StartAt, Statement, View};
use std::sync::Arc;
use std::time::Duration;

/// A pipeline of one `$match`.
struct Match(Filter);

impl EventPipeline for Match {
    fn apply(&self, event: &Scanned<'_>) -> rockdove_documents::Result<Option<Doc>> {
        Ok(self.0.matches_scanned(event)?.then(|| event.doc().clone()))
    }

    fn needs(&self) -> Vec<Alternatives<'_>> {
        self.0.needs()
    }

    fn is_cheap(&self) -> bool {
        self.0.is_cheap()
    }
}

/// What the streams of a run ask for; none of them matches a message.
#[derive(Clone, Copy)]
enum Conditions {
    /// The condition of a node's main stream in Morphium's Standard layout: some fields have to have a value.
    Nodes,
    /// Comparisons only, which the event's values do not lead to: each is evaluated.
    Comparisons,
}

impl Conditions {
    fn of(self, node: usize) -> Doc {
        let (me, topic) = (format!("node-{node}"), format!("topic-{node}"));
        match self {
            Conditions::Nodes => doc! {
                "operationType": "insert",
                "fullDocument.sender": { "$ne": &me },
                "$or": [
                    { "fullDocument.recipients": null, "fullDocument.topic": { "$in": [&topic, "morphium.status_info"] } },
                    { "fullDocument.recipients": &me }
                ]
            },
            Conditions::Comparisons => doc! {
                "operationType": { "$gte": "insert" },
                "fullDocument.sender": { "$ne": &me },
                "$or": [
                    { "fullDocument.in_answer_to": { "$gt": &me } },
                    { "fullDocument.priority": { "$gt": 5000 + node as i32 } }
                ]
            },
        }
    }
}

/// Measures inserts beside `count` streams of which none matches.
pub async fn none_matching(count: usize, inserts: u64) -> Result<Report> {
    ensure!(count > 0 && inserts > 0, "nothing to measure");
    let mut report = Report::default();
    let without = cost(0, Conditions::Nodes, inserts).await?;
    for (conditions, name) in
        [(Conditions::Nodes, "streams"), (Conditions::Comparisons, "streams without equality")]
    {
        let with = cost(count, conditions, inserts).await?;
        let each = (with - without) / (inserts as f64 * count as f64) * 1e9;
        let name = format!("{name}: processor time per insert and stream ({count} streams)");
        report.add(name, each, "ns", Target::AtMost(300.0));
    }
    Ok(report)
}

/// Processor seconds for the inserts, with so many streams open.
async fn cost(streams: usize, conditions: Conditions, inserts: u64) -> Result<f64> {
    let engine = tokio::task::spawn_blocking(|| Engine::open(Options::memory())).await??;
    let ns = Namespace::new("bench", "msg")?;
    let mut open = Vec::new();
    for node in 0..streams {
        let condition = conditions.of(node);
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
    let before = cpu_time();
    for n in 0..inserts {
        let statements = vec![Statement::Insert { ns: ns.clone(), doc: message(n) }];
        engine.write(write(statements)).await?;
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
    let used = cpu_time().saturating_sub(before).as_secs_f64();
    drop(open);
    engine.close().await.map_err(anyhow::Error::msg)?;
    Ok(used)
}
