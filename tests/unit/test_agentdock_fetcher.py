"""The safe fetcher against real HTTP servers on loopback: what it follows, and what it refuses by which rule."""

import asyncio
import gzip
import ipaddress
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from agentdock.fetching import FetchFailed, FetchRefused, SafeFetcher
from agentdock.fetching.addresses import forbidden_kind
from agentdock.fetching.policy import Policy

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def site(pages: dict[str, Page]) -> AsyncIterator[int]:
    """A server on 127.0.0.1; gives its port."""
    application = web.Application()
    for path, page in pages.items():
        application.router.add_get(path, page)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def said(body: str | bytes, **headers: str) -> Page:
    async def page(request: web.Request) -> web.Response:
        payload = body.encode() if isinstance(body, str) else body
        return web.Response(body=payload, headers={name.replace("_", "-"): text for name, text in headers.items()})

    return page


def sent_to(location: str) -> Page:
    async def page(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": location})

    return page


def names(**answers: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """A name server; each look-up of a name takes the next of its answers."""
    left = {name.replace("_", "."): list(addresses) for name, addresses in answers.items()}

    async def lookup(host: str, port: int) -> Sequence[str]:
        return left[host].pop(0).split()

    return lookup


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://127.0.0.1/", "loopback"),
        ("http://127.8.9.1/", "loopback"),
        ("http://[::1]/", "loopback"),
        ("http://[::ffff:127.0.0.1]/", "loopback"),
        ("http://[::127.0.0.1]/", "loopback"),
        ("http://[64:ff9b::7f00:1]/", "loopback"),
        ("http://[64:ff9b:1::1]/", "local NAT64"),
        ("http://[2002:7f00:1::]/", "loopback"),
        ("http://１２７.0.0.1/", "loopback"),
        ("http://127。0。0。1/", "loopback"),
        ("http://0.0.0.0/", "unspecified"),
        ("http://[::]/", "unspecified"),
        ("http://10.1.2.3/", "private"),
        ("http://172.31.0.1/", "private"),
        ("http://192.168.1.1/", "private"),
        ("http://[fd12::1]/", "private"),
        ("http://169.254.1.1/", "link-local"),
        ("http://[fe80::1]/", "link-local"),
        ("http://[fe80::1%25eth0]/", "link-local"),
        ("http://169.254.169.254/latest/meta-data/", "metadata"),
        ("http://[::ffff:a9fe:a9fe]/", "metadata"),
        ("http://[fd00:ec2::254]/", "metadata"),
        ("http://100.100.100.200/", "metadata"),
        ("http://100.64.0.1/", "carrier NAT"),
        ("http://224.0.0.1/", "multicast"),
        ("http://[ff02::1]/", "multicast"),
        ("http://255.255.255.255/", "broadcast"),
        ("http://240.0.0.1/", "reserved"),
        ("http://192.0.2.1/", "reserved"),
        ("http://2130706433/", "address form"),
        ("http://0x7f000001/", "address form"),
        ("http://0x7f.1/", "address form"),
        ("http://017700000001/", "address form"),
        ("http://127.1/", "address form"),
        ("http://127.0.0.1./", "address form"),
        ("http://0177.0.0.1/", "address form"),
        ("http://public.example@127.0.0.1/", "userinfo"),
        ("http://:secret@public.example/", "userinfo"),
        ("http://public.example\\@127.0.0.1/", "url"),
        ("http://public.example /", "url"),
        ("http:///path", "url"),
        ("http://public.example:99999/", "url"),
        ("http://public.example:22/", "port"),
        ("http://8.8.8.8:6379/", "port"),
        ("file:///etc/passwd", "scheme"),
        ("ftp://public.example/", "scheme"),
        ("gopher://public.example/", "scheme"),
        ("data:text/plain,hello", "scheme"),
        ("http://public.example/" + "a" * 9000, "url"),
    ],
)
def test_a_target_that_is_not_public_is_refused_by_rule(url: str, rule: str) -> None:
    with pytest.raises(FetchRefused) as refusal:
        asyncio.run(SafeFetcher().fetch(url))
    assert refusal.value.rule == rule
    assert str(refusal.value).startswith(f"refused ({rule}): ")


def test_a_refusal_says_how_an_operator_allows_the_target() -> None:
    with pytest.raises(FetchRefused, match=r"allow 10\.1\.2\.3:80 or the network of 10\.1\.2\.3 with --allow"):
        asyncio.run(SafeFetcher().fetch("http://10.1.2.3/"))


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_allowed(text: str) -> None:
    assert forbidden_kind(ipaddress.ip_address(text)) == ""


def test_an_allowed_network_opens_its_addresses_and_ports_but_never_metadata() -> None:
    policy = Policy.parse(["10.0.0.0/8", "169.254.0.0/16", "[fd00::1]:81"])
    assert str(policy.url("http://10.1.2.3:9999/x")) == "http://10.1.2.3:9999/x"
    assert policy.url("http://[fd00::1]:81/").port == 81
    with pytest.raises(FetchRefused, match="metadata"):
        policy.url("http://169.254.169.254/")
    with pytest.raises(FetchRefused, match="private"):
        policy.url("http://[fd00::1]/")


@pytest.mark.parametrize("entry", ["", "intranet", "10.0.0.0/99", "http://host:80/", "user@host:80"])
def test_an_allow_entry_that_is_neither_host_nor_network_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match="neither host:port nor a network"):
        SafeFetcher([entry])


def test_an_allowed_server_is_fetched_through_its_redirects() -> None:
    async def play() -> None:
        pages = {"/": sent_to("/a?x=1"), "/a": sent_to("page"), "/page": said("hello", Content_Type="text/plain")}
        async with site(pages) as port:
            fetched = await SafeFetcher([f"127.0.0.1:{port}"]).fetch(f"http://127.0.0.1:{port}/")
        assert (fetched.status, fetched.body, fetched.content_type) == (200, b"hello", "text/plain")
        assert (fetched.final_url, fetched.redirects) == (f"http://127.0.0.1:{port}/page", 2)
        assert not fetched.truncated

    asyncio.run(play())


@pytest.mark.parametrize(
    ("location", "rule"),
    [
        ("http://127.0.0.1:1/", "port"),
        ("http://127.0.0.1/", "loopback"),
        ("//169.254.169.254/latest", "metadata"),
        ("file:///etc/passwd", "scheme"),
        ("http://0x7f000001/", "address form"),
        ("http://user@127.0.0.1/", "userinfo"),
        ("http://inner.test/", "private"),
    ],
)
def test_every_redirect_is_checked(location: str, rule: str) -> None:
    async def play() -> None:
        async with site({"/": sent_to(location)}) as port:
            fetcher = SafeFetcher([f"127.0.0.1:{port}"], lookup=names(inner_test=["192.168.0.9"]))
            with pytest.raises(FetchRefused) as refusal:
                await fetcher.fetch(f"http://127.0.0.1:{port}/")
        assert refusal.value.rule == rule

    asyncio.run(play())


def test_a_redirect_loop_ends() -> None:
    async def play() -> None:
        async with site({"/": sent_to("/")}) as port:
            with pytest.raises(FetchRefused, match="redirects more than 3 times"):
                await SafeFetcher([f"127.0.0.1:{port}"], max_redirects=3).fetch(f"http://127.0.0.1:{port}/")

    asyncio.run(play())


def test_a_name_with_one_inner_address_is_refused() -> None:
    fetcher = SafeFetcher(lookup=names(mixed_test=["8.8.8.8 10.0.0.1"]))
    with pytest.raises(FetchRefused, match=r"mixed\.test \(10\.0\.0\.1\) is a private address"):
        asyncio.run(fetcher.fetch("http://mixed.test/"))


def test_a_name_that_changes_its_address_is_connected_to_as_it_was_checked() -> None:
    """The second answer would be refused, or lead elsewhere; it is never asked for."""

    async def play() -> None:
        async with site({"/": said("checked")}) as port:
            lookup = names(rebind_test=["127.0.0.1", "169.254.169.254"])
            fetcher = SafeFetcher(["127.0.0.1/32"], ports=[port], lookup=lookup)
            fetched = await fetcher.fetch(f"http://rebind.test:{port}/")
            assert fetched.body == b"checked"
            with pytest.raises(FetchRefused, match="metadata"):
                await fetcher.fetch(f"http://rebind.test:{port}/")

    asyncio.run(play())


def test_a_body_over_the_cap_is_refused_whether_declared_or_not() -> None:
    async def gigabyte(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(1024**3)} if request.query else {})
        await response.prepare(request)
        for _ in range(64):
            await response.write(bytes(64 * 1024))
        return response

    async def play() -> None:
        async with site({"/": gigabyte}) as port:
            fetcher = SafeFetcher([f"127.0.0.1:{port}"], max_body_bytes=1_000_000)
            with pytest.raises(FetchRefused, match="the body has 1073741824 bytes; at most 1000000"):
                await fetcher.fetch(f"http://127.0.0.1:{port}/?declared")
            with pytest.raises(FetchRefused, match="larger than 1000000 bytes; at most"):
                await fetcher.fetch(f"http://127.0.0.1:{port}/")

    asyncio.run(play())


def raw_deflate(payload: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(payload) + stream.flush()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw"])
def test_compressed_bodies_are_decoded_and_bombs_are_refused(encoding: str) -> None:
    code = {"gzip": gzip.compress, "deflate": zlib.compress, "raw": raw_deflate}[encoding]
    named = "deflate" if encoding == "raw" else encoding

    async def play() -> None:
        pages = {
            "/bomb": said(code(bytes(50_000_000)), Content_Encoding=named),
            "/page": said(code(b"hello " * 1000), Content_Encoding=named),
            "/cut": said(code(b"hello " * 1000)[:-9], Content_Encoding=named),
        }
        async with site(pages) as port:
            fetcher = SafeFetcher([f"127.0.0.1:{port}"], max_body_bytes=1_000_000)
            with pytest.raises(FetchRefused, match="larger than 1000000 bytes after decompression"):
                await fetcher.fetch(f"http://127.0.0.1:{port}/bomb")
            page = await fetcher.fetch(f"http://127.0.0.1:{port}/page")
            assert (page.body, page.truncated) == (b"hello " * 1000, False)
            assert (await fetcher.fetch(f"http://127.0.0.1:{port}/cut")).truncated

    asyncio.run(play())


def test_gzip_members_in_a_row_are_one_body_and_other_codings_are_refused() -> None:
    async def play() -> None:
        pages = {
            "/two": said(gzip.compress(b"one ") + gzip.compress(b"two"), Content_Encoding="gzip"),
            "/many": said(gzip.compress(b"") * 500, Content_Encoding="gzip"),
            "/brotli": said(b"\x00", Content_Encoding="br"),
            "/twice": said(gzip.compress(gzip.compress(b"x")), Content_Encoding="gzip, gzip"),
            "/damaged": said(b"not gzip", Content_Encoding="gzip"),
        }
        async with site(pages) as port:
            fetcher, root = SafeFetcher([f"127.0.0.1:{port}"]), f"http://127.0.0.1:{port}"
            assert (await fetcher.fetch(f"{root}/two")).body == b"one two"
            for path in ("/brotli", "/twice", "/many"):
                with pytest.raises(FetchRefused, match="encoding"):
                    await fetcher.fetch(root + path)
            with pytest.raises(FetchFailed, match="damaged"):
                await fetcher.fetch(f"{root}/damaged")

    asyncio.run(play())


def test_a_server_that_drips_is_given_up_at_the_deadline() -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b".")
            await asyncio.sleep(0.02)
        return response

    async def play() -> None:
        async with site({"/": drip}) as port:
            fetcher = SafeFetcher([f"127.0.0.1:{port}"], timeout_seconds=0.3)
            with pytest.raises(FetchFailed, match=r"no complete answer within 0\.3 s"):
                await fetcher.fetch(f"http://127.0.0.1:{port}/")

    asyncio.run(play())


def test_a_header_without_end_fails_the_fetch() -> None:
    async def play() -> None:
        async with site({"/": said("x", X_Long="a" * 100_000)}) as port:
            with pytest.raises(FetchFailed, match="failed"):
                await SafeFetcher([f"127.0.0.1:{port}"]).fetch(f"http://127.0.0.1:{port}/")

    asyncio.run(play())


def test_a_body_that_ends_early_is_kept_and_flagged() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    async def play() -> None:
        async with site({"/": cut}) as port:
            fetched = await SafeFetcher([f"127.0.0.1:{port}"]).fetch(f"http://127.0.0.1:{port}/")
        assert (fetched.body, fetched.truncated) == (b"half", True)

    asyncio.run(play())


def test_authorization_stays_with_its_origin_and_the_proxy_environment_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    async def echo(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.headers.get('Authorization')} {request.headers['X-Kept']}")

    async def play() -> None:
        async with site({"/echo": echo}) as other:
            pages = {"/there": sent_to(f"http://127.0.0.1:{other}/echo"), "/here": sent_to("/echo"), "/echo": echo}
            async with site(pages) as port:
                fetcher = SafeFetcher([f"127.0.0.1:{port}", f"127.0.0.1:{other}"])
                headers = {"Authorization": "Bearer t", "X-Kept": "yes"}
                here = await fetcher.fetch(f"http://127.0.0.1:{port}/here", headers=headers)
                there = await fetcher.fetch(f"http://127.0.0.1:{port}/there", headers=headers)
        assert (here.body, there.body) == (b"Bearer t yes", b"None yes")

    asyncio.run(play())


def test_a_configured_proxy_carries_the_request() -> None:
    async def relay(request: web.Request) -> web.Response:
        return web.Response(text=f"relayed {request.url}")

    async def play() -> None:
        async with site({"/page": relay}) as port:
            fetcher = SafeFetcher(proxy=f"http://127.0.0.1:{port}")
            assert (await fetcher.fetch("http://public.test/page")).body == b"relayed http://public.test/page"
            with pytest.raises(FetchRefused, match="loopback"):
                await fetcher.fetch("http://127.0.0.1/")

    asyncio.run(play())


def test_names_that_are_not_found_and_closed_ports_are_failures_not_refusals() -> None:
    async def play() -> None:
        async with site({}) as port:
            pass
        with pytest.raises(FetchFailed, match="failed"):
            await SafeFetcher([f"127.0.0.1:{port}"]).fetch(f"http://127.0.0.1:{port}/")
        with pytest.raises(FetchFailed, match=r"the name nowhere\.invalid was not found"):
            await SafeFetcher().fetch("http://nowhere.invalid/")

    asyncio.run(play())
