//! Clients of the scheduler, and the tasks that each wants.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use super::ids::{ClientId, TaskId};
use crate::hashing::Map;
use crate::ordered_set::OrderedSet;

/// A client that may want results
#[derive(Debug)]
pub(super) struct Client {
    pub(super) name: Arc<str>,
    pub(super) wants: OrderedSet<TaskId>,
    /// True if the client has a stream
    pub(super) has_stream: bool,
}

/// Clients by number and name
#[derive(Debug)]
pub(super) struct Clients {
    clients: Vec<Option<Client>>,
    free: Vec<ClientId>,
    pub(super) by_name: Map<Arc<str>, ClientId>,
    /// Stands for programs that no longer hold the future of what they asked for
    pub(super) fire_and_forget: ClientId,
}

impl Clients {
    pub(super) fn new() -> Self {
        let mut clients = Self {
            clients: Vec::new(),
            free: Vec::new(),
            by_name: Map::default(),
            fire_and_forget: ClientId::at(0),
        };
        clients.fire_and_forget = clients.find_or_add("fire-and-forget");
        clients
    }

    pub(super) fn find_or_add(&mut self, name: &str) -> ClientId {
        if let Some(&client) = self.by_name.get(name) {
            return client;
        }
        let name = Arc::<str>::from(name);
        let client = Client {
            name: Arc::clone(&name),
            wants: OrderedSet::new(),
            has_stream: false,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.clients[id.index()] = Some(client);
                id
            }
            None => {
                self.clients.push(Some(client));
                ClientId::at(self.clients.len() - 1)
            }
        };
        self.by_name.insert(name, id);
        id
    }

    pub(super) fn remove(&mut self, id: ClientId) {
        let name = Arc::clone(&self[id].name);
        self.by_name.remove(&name);
        self.clients[id.index()] = None;
        self.free.push(id);
    }
}

impl Index<ClientId> for Clients {
    type Output = Client;

    fn index(&self, id: ClientId) -> &Client {
        self.clients[id.index()]
            .as_ref()
            .expect("a client that has gone wants nothing")
    }
}

impl IndexMut<ClientId> for Clients {
    fn index_mut(&mut self, id: ClientId) -> &mut Client {
        self.clients[id.index()]
            .as_mut()
            .expect("a client that has gone wants nothing")
    }
}
