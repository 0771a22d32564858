"""Requests of clients while the core has the state: wanted, scattered, cancelled, retried keys.

Dask's publications, variables and queues are clients without a stream. Dask's own methods run where
no tasks are left for them to handle: they make clients, warn of unknown keys, notify plugins and
raise errors.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from backhaul.dask.compat.names import key_split, key_split_group, time
from backhaul.dask.scheduler.core.adopted_tasks import is_size
from backhaul.dask.scheduler.fire_and_forget import ENDED, FIRE_AND_FORGET

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.guarded_classes import Guards
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["ClientInterests"]

logger = logging.getLogger("distributed.scheduler")

#: States of tasks for which a client may put a result on workers; None if there is no task
_MAY_BE_PLACED = (None, "released", "waiting", "no-worker", "memory", "erred")


class ClientInterests:
    """Passes the requests of clients to a core."""

    def __init__(self, live: LiveCore, guards: Guards) -> None:
        self._live = live
        self._guards = guards
        #: Dask's object, and the stream if there is one, of each client in the core, by name
        self._known: dict[str, tuple[Any, Any]] = {
            client: self._now(client) for client in live.scheduler.clients
        }

    def _now(self, client: str) -> tuple[Any, Any]:
        scheduler = self._live.scheduler
        return scheduler.clients.get(client), scheduler.client_comms.get(client)

    def know_client(self, client: str) -> None:
        """Add a client to the core that has connected since, or again without leaving before."""
        known = self._known.get(client)
        found = cs, stream = self._now(client)
        if known is not None and known[0] is cs and known[1] is stream:
            return
        live = self._live
        if known is not None:
            # Python handles the messages of the client's earlier connection, as Dask does.
            with live.alone():
                if live.streams is not None:
                    live.streams.remove_client(client)
            if known[0] is not None and known[0] is not cs:
                self._guards.release_one(known[0])
        self._known[client] = found
        if cs is not None:
            self._guards.guard_client(cs)
        if stream is not None:
            if live.streams is not None and not live.streams.knows_client(client, stream):
                live.leave_engine()
            live.core.handle_client_added(client)

    def place(
        self, who_has: Mapping[Any, Iterable[str]], nbytes: Mapping[Any, int], client: str | None
    ) -> bool:
        """Take results that a client put on workers; tell whether the core has them.

        Sizes are in bytes. The size of a result may be missing, and is negative if it is not known.
        """
        live = self._live
        with live.alone():
            return self._place(who_has, nbytes, client)

    def _place(
        self, who_has: Mapping[Any, Iterable[str]], nbytes: Mapping[Any, int], client: str | None
    ) -> bool:
        live = self._live
        placed = []
        for key, addresses in who_has.items():
            group = key_split_group(key)
            if type(group) is not str:
                live.escape("a key that names no group")
                return False
            text = live.texts.text(key)
            state = live.core.state_of(text)
            if state not in _MAY_BE_PLACED:
                # A worker has the task in hand, or is about to: only Dask goes on with both.
                live.escape(f"results for a task that is {state}")
                return False
            workers = list(map(live.scheduler.coerce_address, addresses))
            if not live.membership.known.issuperset(workers):
                # Dask reports the error, or has a worker that the core does not have yet.
                live.escape("results on a worker that the core does not know")
                return False
            size = nbytes.get(key, -1)
            if not is_size(size) and not (isinstance(size, int) and size < 0):
                live.escape("results of a size that the core cannot count")
                return False
            placed.append(
                (
                    text,
                    group,
                    key_split(key),
                    size if size >= 0 else None,
                    workers,
                )
            )
        if live.texts.has_odd:
            live.leave_engine()
        if client:
            self._make_client(client)
            self.know_client(client)
        now_s = time()
        handle = live.core.handle_update_data
        live.call(handle, f"update-data-{now_s}", now_s, placed, client or None)
        live.send()
        return True

    def methods(self) -> dict[str, Callable[[Any], Any]]:
        """Return, by name, functions that make a replacement from the method of the class."""
        return {
            "add_replica": self._add_replica,
            "client_desires_keys": self._desire,
            "client_releases_keys": self._release,
            "remove_client": self._remove_client,
            "stimulus_cancel": self._cancel,
            "stimulus_retry": self._retry,
        }

    def _make_client(self, client: str) -> None:
        """Let Dask make the object of a client that it does not know, such as a variable's."""
        live = self._live
        if client not in live.scheduler.clients:
            live.scheduler.client_desires_keys(keys=[], client=client)

    def _desire(self, upstream: Any) -> Any:
        live = self._live

        def method(scheduler: Any, keys: Collection[Any], client: str) -> None:
            if not live.is_active:
                upstream(scheduler, keys, client)
                return
            keys = list(keys)
            # Dask makes an unknown client, and warns of keys without a task.
            upstream(scheduler, [key for key in keys if not live.has_task(key)], client)
            texts = [live.texts.text(key) for key in keys if live.has_task(key)]
            if not texts:
                return
            self.know_client(client)
            now_s = time()
            handle = live.core.handle_client_desires_keys
            live.call(handle, f"client-desires-keys-{now_s}", now_s, texts, client)
            if client == FIRE_AND_FORGET:
                self._drop_ended(texts, now_s)
            live.send()

        return method

    def _drop_ended(self, texts: list[str], now_s: float) -> None:
        """Release ended tasks of `fire_and_forget`; the core releases the others when they end."""
        live = self._live
        ended = [text for text in texts if live.core.state_of(text) in ENDED]
        if ended:
            handle = live.core.handle_client_releases_keys
            live.call(handle, f"client-releases-keys-{now_s}", now_s, ended, FIRE_AND_FORGET)

    def _release(self, upstream: Any) -> Any:
        live = self._live

        def method(
            scheduler: Any, keys: Iterable[Any], client: str, stimulus_id: str | None = None
        ) -> None:
            if not live.is_active or client not in scheduler.clients:
                upstream(scheduler, keys, client, stimulus_id)
                return
            known = live.texts.known
            texts = [text for key in keys if (text := known(key)) is not None]
            # A client that the core does not have wants no tasks.
            if texts and client in self._known:
                now_s = time()
                stimulus_id = stimulus_id or f"client-releases-keys-{now_s}"
                handle = live.core.handle_client_releases_keys
                live.call(handle, stimulus_id, now_s, texts, client)
                live.send()

        return method

    def _remove_client(self, upstream: Any) -> Any:
        live = self._live

        def method(scheduler: Any, client: str, stimulus_id: str | None = None) -> None:
            cs = scheduler.clients.get(client)
            if live.is_active and cs is not None:
                now_s = time()
                stimulus_id = stimulus_id or f"remove-client-{now_s}"
                if client in self._known:
                    with live.alone():
                        if live.streams is not None:
                            live.streams.remove_client(client)
                        handle = live.core.handle_client_removed
                        live.call(handle, stimulus_id, now_s, client)
                        del self._known[client]
                        # Dask finds that it wants nothing.
                        self._guards.release_one(cs)
                        live.send()
            upstream(scheduler, client, stimulus_id)

        return method

    def _cancel(self, upstream: Any) -> Any:
        live = self._live

        def method(
            scheduler: Any,
            keys: Collection[Any],
            client: str,
            force: bool,
            reason: str | None = None,
            msg: str | None = None,
        ) -> None:
            if not live.is_active:
                upstream(scheduler, keys, client, force=force, reason=reason, msg=msg)
                return
            known = live.texts.known
            texts = [text for key in keys if (text := known(key)) is not None]
            tell = functools.partial(_tell_of_request, scheduler, client, force)
            tell(len(keys))
            if client not in scheduler.clients:
                return
            self.know_client(client)
            now_s = time()
            handle = live.core.handle_cancel
            stimulus_id = f"cancel-key-{now_s}"
            counts, cancelled = live.call(
                handle, stimulus_id, now_s, texts, client, bool(force), reason, msg
            )
            for count in counts:
                tell(count)
            for text in cancelled:
                logger.info("Scheduler cancels key %s.  Force=%s", live.texts.key(text), force)
            live.send()

        return method

    def _retry(self, upstream: Any) -> Any:
        live = self._live

        def method(
            scheduler: Any, keys: Collection[Any], client: str | None = None
        ) -> tuple[Any, ...]:
            if not live.is_active or not all(map(live.has_task, keys)):
                # Of one that is not known Dask raises before it changes anything.
                return tuple(upstream(scheduler, keys, client))
            logger.info("Client %s requests to retry %d keys", client, len(keys))
            if client:
                scheduler.log_event(client, {"action": "retry", "count": len(keys)})
            now_s = time()
            texts = [live.texts.text(key) for key in keys]
            seen = live.call(live.core.handle_retry, f"stimulus-retry-{now_s}", now_s, texts)
            again = tuple(map(live.texts.key, seen))
            live.send()
            return again

        return method

    def _add_replica(self, upstream: Any) -> Any:
        live = self._live

        def method(scheduler: Any, ts: Any, ws: Any) -> None:
            text = live.texts.known(ts.key) if live.is_active else None
            if text is None or ws.address not in live.membership.known:
                # To write there is an escape.
                upstream(scheduler, ts, ws)
                return
            now_s = time()
            handle = live.core.handle_add_keys
            live.call(handle, f"add-replica-{now_s}", now_s, ws.address, [text])
            live.send()

        return method


def _tell_of_request(scheduler: Any, client: str, force: bool, count: int) -> None:
    logger.info("Client %s requests to cancel %d keys", client, count)
    scheduler.log_event(client, {"action": "cancel", "count": count, "force": force})
