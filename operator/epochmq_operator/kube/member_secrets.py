"""Creates the Secrets by which members authenticate each other. The operator never reads one: it has no right
to, and only tries to create it. One that exists stays as it is."""

from __future__ import annotations

import base64
import secrets
import time
from collections import OrderedDict

import structlog

from epochmq_operator.kube.api import Api, ApiError
from epochmq_operator.manifests.pod import MEMBERS_FILE
from epochmq_operator.plans.objects import Manifest, Ref, ref_of

SECRET_BYTES = 32
CHECKED_FOR_S = 300.0
"""After this time a Secret that somebody has deleted is created again."""
CHECKED_WHILE_UNREADY_S = 3.0
"""The same while pods are not ready, perhaps because there is no Secret, or because the garbage collector has
deleted that of an earlier group of this name."""
FAILED_FOR_S = 30.0
"""The time until the next attempt after the API server rejected one."""
REMEMBERED_MAX = 10_000

log = structlog.get_logger()


class MemberSecrets:
    """Creates Secrets of members, and remembers for which it has done so."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._checked: OrderedDict[Ref, tuple[float, str]] = OrderedDict()
        """When each Secret is to be checked again, and what is wrong with it."""

    async def ensure(self, wanted: Manifest, *, ready: bool) -> str:
        """Creates this Secret, which has no data yet, unless it exists. `ready`: the group's pods are ready.
        Returns why that is impossible; empty if it is not."""
        ref, now = ref_of(wanted), time.monotonic()
        checked = self._checked.get(ref)
        if checked is not None:
            until_s = checked[0] + (CHECKED_FOR_S if ready else CHECKED_WHILE_UNREADY_S)
            if now < (checked[0] + FAILED_FOR_S if checked[1] else until_s):
                return checked[1]
        problem = await self._create(wanted, ref)
        self._checked[ref] = now, problem
        self._checked.move_to_end(ref)
        while len(self._checked) > REMEMBERED_MAX:
            self._checked.popitem(last=False)
        return problem

    async def _create(self, wanted: Manifest, ref: Ref) -> str:
        value = base64.b64encode(f"{secrets.token_hex(SECRET_BYTES)}\n".encode()).decode()
        try:
            await self._api.create({**wanted, "data": {MEMBERS_FILE: value}})
        except ApiError as error:
            if error.status == 409:
                return ""
            if error.is_rejection:
                return (
                    f"the API server does not let the operator create {ref}, by which members authenticate "
                    f"each other: {error}; give the operator the rights of its chart, or set "
                    "spec.memberAuthentication to Disabled"
                )[:500]
            raise
        log.info("created the secret of members", secret=str(ref), namespace=ref.namespace)
        return ""
