"""Anthropic's official client, asynchronous, in front of an application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from fastapi import FastAPI

from tests.conformance.watch import watched


@asynccontextmanager
async def anthropic_client(app: FastAPI, key: str = "sk-alice") -> AsyncIterator[AsyncAnthropic]:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    http = watched(DefaultAsyncHttpxClient(transport=transport))
    async with AsyncAnthropic(api_key=key, base_url="http://baton", http_client=http, max_retries=0) as client:
        yield client
