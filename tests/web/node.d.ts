/** The few names of Node's own modules that these tests use; nothing has to be installed to check them. */
declare module "node:test" {
  export default function test(name: string, run: () => void | Promise<void>): void;
}
declare module "node:assert/strict" {
  interface Assert {
    (value: unknown, message?: string): asserts value;
    equal<T>(actual: unknown, expected: T, message?: string): asserts actual is T;
    notEqual(actual: unknown, expected: unknown, message?: string): void;
    deepEqual(actual: unknown, expected: unknown, message?: string): void;
    throws(run: () => unknown, expected?: RegExp | (new (...args: never[]) => Error)): void;
    match(actual: string, pattern: RegExp, message?: string): void;
  }
  const assert: Assert;
  export default assert;
}
declare module "node:fs" {
  export function readFileSync(path: URL, encoding: "utf8"): string;
  export function readdirSync(path: URL, options: { recursive: true }): string[];
}
