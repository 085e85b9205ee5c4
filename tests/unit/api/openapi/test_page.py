"""The page of the document shows texts as texts."""

from api.openapi.page import page_of


def test_nothing_of_the_document_becomes_markup() -> None:
    evil = "<script>x</script>&\"'"
    operation = {
        "tags": [evil],
        "summary": evil,
        "description": evil,
        "security": [],
        "parameters": [{"name": evil, "in": evil, "schema": {"enum": [evil]}}],
        "requestBody": {
            "content": {"application/json": {"schema": {"properties": {evil: {"type": evil, "description": evil}}}}}
        },
    }
    page = page_of(
        {
            "info": {"title": evil, "version": evil, "description": evil},
            "tags": [{"name": evil}],
            "paths": {f"/{evil}": {"get": operation}},
            "components": {"schemas": {}},
        }
    )
    assert "<script" not in page and page.count("&lt;script&gt;") == 14
