// A job with tools by the SDKs of Node: node node_client.mjs URL chat|responses|messages stream|whole
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";

const [url, wire, how] = process.argv.slice(2);
const stream = how === "stream", read = [];
const parameters = {type: "object", properties: {page: {type: "integer"}}};
const look = ({page}) => (read.push(page), `page ${page}: ` + "0123456789 ".repeat(300));
const openai = new OpenAI({baseURL: `${url}/v1`, apiKey: "k"}), claude = new Anthropic({baseURL: url, apiKey: "k"});
const told = {
  async chat() {
    const messages = [{role: "user", content: "read"}];
    const tools = [{type: "function", function: {name: "look", parameters}}];
    for (;;) {
      const body = {model: "m", messages, tools};
      const answer = stream
        ? await openai.chat.completions.stream(body).finalChatCompletion()
        : await openai.chat.completions.create(body);
      const said = answer.choices[0].message;
      messages.push(said);
      if (!said.tool_calls?.length) return said.content;
      for (const call of said.tool_calls)
        messages.push({role: "tool", tool_call_id: call.id, content: look(JSON.parse(call.function.arguments))});
    }
  },
  async responses() {
    const input = [{role: "user", content: "read"}], tools = [{type: "function", name: "look", parameters, strict: false}];
    for (;;) {
      const body = {model: "m", input, tools, store: false};
      const answer = stream ? await openai.responses.stream(body).finalResponse() : await openai.responses.create(body);
      const calls = answer.output.filter(each => each.type === "function_call");
      input.push(...answer.output);
      if (!calls.length) return answer.output[0].content[0].text;
      for (const call of calls)
        input.push({type: "function_call_output", call_id: call.call_id, output: look(JSON.parse(call.arguments))});
    }
  },
  async messages() {
    const messages = [{role: "user", content: "read"}], tools = [{name: "look", input_schema: parameters}];
    for (;;) {
      const body = {model: "m", max_tokens: 99, messages, tools};
      const said = stream ? await claude.messages.stream(body).finalMessage() : await claude.messages.create(body);
      messages.push({role: "assistant", content: said.content});
      const calls = said.content.filter(each => each.type === "tool_use");
      if (!calls.length) return said.content[0].text;
      const content = calls.map(each => ({type: "tool_result", tool_use_id: each.id, content: look(each.input)}));
      messages.push({role: "user", content});
    }
  },
};
console.log(JSON.stringify({text: await told[wire](), read}));
