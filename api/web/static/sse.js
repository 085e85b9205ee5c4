// Server-sent events of a response: yields {name, data} for each.

const MOST_EVENT = 4 << 20; // Characters of one event. More takes memory of a browser that a broken service feeds.

export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
        const event = parsed(rest.slice(0, end));
        if (event) yield event;
      }
      if (rest.length > MOST_EVENT) throw new Error("the answer has an event that is too long");
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(text) {
  let name = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { name, data: data.join("\n") } : null;
}
