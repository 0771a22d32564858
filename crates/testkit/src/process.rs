//! A real second process, connected to this one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use backhaul::{Context, Endpoint};
use rustix::process::{Pid, Signal};

use crate::harness::LOOPBACK;
use crate::peer::Scenario;
use crate::{Finish, Harness, wait_until};

/// A process that runs a scenario of [`crate::peer`]; killed when dropped
#[derive(Debug)]
pub struct PeerProcess {
    child: Child,
}

impl Harness {
    /// Starts a process that connects to this one, waiting until it says that it is ready
    pub fn peer_process(&self, context: &Context, scenario: Scenario) -> (PeerProcess, Endpoint) {
        let listener = context.listen(LOOPBACK).unwrap();
        let program = self.peer_program.expect("the harness has a peer program");
        let mut child = Command::new(program)
            .arg(scenario.name())
            .arg(listener.local_address().to_string())
            .arg(self.lane.name())
            .arg(self.spin.budget().as_micros().to_string())
            .envs(self.peer_environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let process = PeerProcess { child };
        let endpoint = listener.accept().done().unwrap();
        self.assert_lane(&endpoint);
        assert_eq!(endpoint.info().peer_pid, process.child.id());
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        (process, endpoint)
    }
}

impl PeerProcess {
    /// Kills the process, which has no chance to say goodbye
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it exits by itself, returning whether it was content
    pub fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// Stops the process until [`PeerProcess::go_on`]
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        // The state follows the name, which is in parentheses.
        wait_until(|| std::fs::read_to_string(&stat).unwrap().contains(") T "));
    }

    /// Lets a stopped process go on
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
