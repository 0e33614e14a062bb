//! Who this server says it is, and what of that can change while it runs.
//!
//! The server presents itself as the one member of a replica set, because drivers retry writes and open change
//! streams only there. Its role changes when it is told to step down and when it stops; each change raises
//! the counter of `topologyVersion`, which is what waiting `hello`s wait for.

use crate::codec::Compressor;
use rockdove_documents::{DocBuilder, ObjectId};
use rockdove_engine::Level;
use tokio::sync::watch;

/// Connections at one time, unless the configuration says otherwise; more are closed at once.
pub const CONNECTIONS_MAX: usize = 20_000;

/// How the server presents itself; fixed while it runs.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the replica set.
    pub set_name: String,
    /// `host:port` as clients write it, byte for byte: drivers leave a server that calls itself otherwise.
    pub advertised: String,
    /// The MongoDB version whose behaviour clients may expect; tools switch features by it.
    pub version: [i32; 3],
    /// The newest wire version spoken: 21 for 7.0, 25 for 8.0.
    pub max_wire_version: i32,
    /// Whether to present the server as PoppyDB too, with the commands that belong to it.
    pub poppydb: bool,
    /// What `w: "majority"` means without `j`: [`Level::Replicated`], or more.
    pub majority: Level,
    /// Whether the log has a risk policy, so that writes can be acknowledged by their value.
    pub has_risk_policy: bool,
    /// Connections that it takes at one time.
    pub connections_max: usize,
    /// Whether fail points can be set. For tests only: any client may then break the service.
    pub test_commands: bool,
    /// Compressors offered to clients.
    pub compressors: Vec<Compressor>,
}

impl Default for Identity {
    fn default() -> Identity {
        Identity {
            set_name: "rs0".into(),
            advertised: "127.0.0.1:27017".into(),
            version: [7, 0, 0],
            max_wire_version: 21,
            poppydb: false,
            majority: Level::Replicated,
            has_risk_policy: false,
            connections_max: CONNECTIONS_MAX,
            test_commands: false,
            compressors: vec![Compressor::Snappy, Compressor::Zstd, Compressor::Zlib],
        }
    }
}

impl Identity {
    /// The version as text.
    pub fn version_text(&self) -> String {
        let [major, minor, patch] = self.version;
        format!("{major}.{minor}.{patch}")
    }
}

/// What the server is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Takes writes.
    Primary,
    /// Was told to step down: reads only.
    Secondary,
    /// Stops: new commands are refused.
    Stopping,
}

/// Role, term and how often they changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// The role.
    pub role: Role,
    /// The election term.
    pub term: i64,
    /// Changes so far: the `counter` of `topologyVersion`.
    pub counter: i64,
}

/// The changing part, watched by waiting `hello`s.
#[derive(Debug)]
pub struct Topology {
    process: ObjectId,
    state: watch::Sender<State>,
}

impl Topology {
    /// A primary in `term`, which must be higher after every restart: clients take one with a lower term for stale.
    pub fn new(term: i64) -> Topology {
        let process = ObjectId::from_parts(rand::random(), rand::random());
        Topology { process, state: watch::Sender::new(State { role: Role::Primary, term, counter: 6 }) }
    }

    /// The state now.
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// A receiver that is told of every change.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Whether a client's `topologyVersion` was given by this run of the server.
    pub fn is_ours(&self, process: ObjectId) -> bool {
        self.process == process
    }

    /// Stops taking writes; whether it took them before.
    pub fn step_down(&self) -> bool {
        self.change(|state| state.role == Role::Primary, |state| state.role = Role::Secondary)
    }

    /// Takes writes again, in a new term; whether it had stepped down.
    pub fn step_up(&self) -> bool {
        self.change(
            |state| state.role == Role::Secondary,
            |state| {
                state.role = Role::Primary;
                state.term += 1;
            },
        )
    }

    /// Refuses new commands from now on; whether it took them before.
    pub fn stop(&self) -> bool {
        self.change(|state| state.role != Role::Stopping, |state| state.role = Role::Stopping)
    }

    fn change(&self, when: impl Fn(&State) -> bool, change: impl Fn(&mut State)) -> bool {
        self.state.send_if_modified(|state| {
            let applies = when(state);
            if applies {
                change(state);
                state.counter += 1;
            }
            applies
        })
    }

    /// Appends `topologyVersion`.
    pub fn append_version(&self, reply: &mut DocBuilder) {
        reply.start_document("topologyVersion");
        reply.append("processId", self.process).append("counter", self.state().counter).end();
    }

    /// The election id of a term: it orders elections for clients.
    pub fn election_id(term: i64) -> ObjectId {
        ObjectId::from_parts(0x7fff_ffff, term as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_counts_once() {
        let topology = Topology::new(3);
        let start = topology.state().counter;
        assert!(!topology.step_up());
        assert!(topology.step_down());
        assert!(!topology.step_down());
        assert!(topology.step_up());
        assert_eq!(topology.state(), State { role: Role::Primary, term: 4, counter: start + 2 });
        assert!(topology.stop());
        assert!(!topology.stop() && !topology.step_up() && !topology.step_down());
        assert_eq!(topology.state().counter, start + 3);
    }

    #[test]
    fn election_ids_rise_with_the_term() {
        assert_eq!(Topology::election_id(1).to_string(), "7fffffff0000000000000001");
        assert!(Topology::election_id(2) > Topology::election_id(1));
    }
}
